#!/bin/sh
# Create a secret at the first start, then run a command: with-secret.sh FILE COMMAND [ARGUMENT]...
# FILE gets 64 random hexadecimal digits. If no environment variable names FILE, the secret comes from elsewhere, and
# FILE is not created.
set -eu
file=$1
shift

create() {
    new=$(mktemp "$file.XXXXXX") || return 1
    chmod 0640 "$new" # readable by the group: Prometheus runs as another user
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$new"
    # A link never replaces FILE, and never leaves it half written.
    [ "$(wc -c <"$new")" -eq 64 ] && ln "$new" "$file" 2>/dev/null && made=yes
    rm -f "$new"
    [ -s "$file" ] # or a second start was faster
}

case $(env) in
*"$file"*)
    made=no
    if [ ! -e "$file" ] && ! create; then
        echo "with-secret: cannot create $file: its folder must be writable for user $(id -u); mount a volume there," \
            "or set the variable that names it to another file" >&2
        exit 78
    fi
    case $made in
    yes) echo "with-secret: created a secret in $file" >&2 ;;
    *) echo "with-secret: the secret is in $file" >&2 ;;
    esac
    ;;
esac
exec "$@"
