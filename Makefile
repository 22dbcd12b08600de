# See README.md. Everything is done by scripts/ so that it can be read and run by itself.
.PHONY: build up down clean-pool test bench

build:            ## target/release/terrace
	scripts/build.sh

up:               ## make a pool (or remount it) at ./mnt
	scripts/up.sh

down:             ## unmount ./mnt
	scripts/down.sh

clean-pool:       ## unmount and delete the pool of `make up`
	scripts/clean-pool.sh

test:             ## every check of the project
	scripts/test.sh

bench: build      ## the tables of docs/benchmarks.md
	scripts/bench.sh
