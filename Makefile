# See README.md. Everything is done by scripts/ so that it can be read and run by itself.
.PHONY: build install uninstall up down clean-pool check test lab bench

build:            ## target/release/terrace
	scripts/build.sh

install:          ## the program, its other names, man pages, completions; DESTDIR and PREFIX as usual
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh

uninstall:        ## removes them
	@DESTDIR="$(DESTDIR)" PREFIX="$(PREFIX)" scripts/install.sh remove

up:               ## make a pool (or remount it) at ./mnt; PM=1: with a fast tier on /dev/shm
	scripts/up.sh

down:             ## unmount ./mnt
	scripts/down.sh

clean-pool:       ## unmount and delete the pool of `make up`
	scripts/clean-pool.sh

check:            ## format, lints, unit and contract tests, the house: less than 5 minutes
	scripts/check.sh

test:             ## every check of the project
	scripts/test.sh

lab:              ## target/release/terrace-lab too: `terrace bench smoke` and `terrace bench paper` start it
	scripts/build.sh lab

bench: lab        ## the tables of docs/benchmarks.md
	scripts/bench.sh
