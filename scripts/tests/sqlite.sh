# SQLite as a writer whose commits are acknowledged, for suites that end the daemon under it. Sourced after suites.sh, not run.
# The suite sets `log`, a directory beside the pool for what was acknowledged, and `users`, the processes started.

# Transactions without end: each a row with its own number, content of random size and its checksum, and now and
# then an update of older rows; what sqlite3 says after a commit is the acknowledgement.
transactions() { # FIRST
    local number=$1
    while :; do
        cat <<SQL
begin;
with x as materialized (select randomblob(500 + abs(random()) % 20000) as b)
    insert into t select $number, b, sha3(b) from x;
with x as materialized (select randomblob(500 + abs(random()) % 9000) as b)
    update t set b = x.b, sum = sha3(x.b) from x where n = abs(random()) % $number;
delete from t where n = $((number - 1500));
commit;
select $number;
SQL
        number=$((number + 1))
    done
}
acknowledged() { # MODE: the last number acknowledged
    local last
    last=$(tail -n 1 "$log/$1" 2>/dev/null) || true
    echo "${last:-0}"
}
start_sqlite() { # MODE
    local next=$(($(acknowledged "$1") + 2))
    transactions $next 2>/dev/null | stdbuf -oL sqlite3 -bail \
        -cmd "pragma journal_mode=$1; pragma synchronous=full;" \
        -cmd "create table if not exists t(n integer primary key, b blob, sum blob);" \
        "mnt/$1.db" 2>"$log/$1.error" | stdbuf -oL grep -xE '[0-9]+' >>"$log/$1" &
    users+=($!)
}

verify_database() { # MODE
    local db=mnt/$1.db last found
    last=$(acknowledged "$1")
    [ -e "$db" ] || { [ "$last" = 0 ] && return; fail "$db is gone"; }
    found=$(sqlite3 "$db" "pragma integrity_check") || fail "$db: $found"
    [ "$found" = ok ] || fail "$db: integrity_check: $found"
    [ "$last" != 0 ] || return 0
    # The last acknowledged row is there; of the rows after it at most the one under way.
    found=$(sqlite3 "$db" "select count(*) from t where n = $last")
    [ "$found" = 1 ] || fail "$db: acknowledged row $last is lost"
    found=$(sqlite3 "$db" "select count(*) from t where n > $last + 1")
    [ "$found" = 0 ] || fail "$db: $found rows after the one under way"
    found=$(sqlite3 "$db" "select count(*) from t where sum <> sha3(b)")
    [ "$found" = 0 ] || fail "$db: $found rows with wrong content"
    # No acknowledged row is missing in between: rows are deleted 1,500 numbers later and no sooner. Each start skips numbers.
    awk -v last="$last" '$1 > last - 1400 { print "insert into a values(" $1 ");" }' "$log/$1" >rows.sql
    found=$(sqlite3 "$db" "create temp table a(n)" ".read rows.sql" "select count(*) from a where n not in (select n from t)")
    [ "$found" = 0 ] || fail "$db: $found acknowledged rows are lost"
}
