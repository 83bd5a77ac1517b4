#!/bin/sh
# Create the secrets of agent.yml and server.yml: fleet-secrets.sh FOLDER NAME... NAME: a machine, as Prometheus calls it.
# FOLDER/NAME is for that machine's /etc/memwatchd. All share one token. Run it again to add machines: the token and the
# authority stay. FOLDER/ca.key signs certificates; keep it from the machines. Needs openssl.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: fleet-secrets.sh FOLDER NAME..." >&2
    exit 2
fi
folder=$1
shift
for name in "$@"; do
    case $name in
    *[!A-Za-z0-9.-]* | "" | .* | -*)
        echo "fleet-secrets: $name: not a host name; use letters, digits, dots and hyphens" >&2
        exit 2
        ;;
    esac
done
umask 077
mkdir -p "$folder"
[ -s "$folder/token" ] || openssl rand -hex 32 | tr -d '\n' >"$folder/token"
# Valid for ten years; a machine's certificate for two.
[ -s "$folder/ca.pem" ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=memwatchd fleet" \
    -addext "basicConstraints=critical,CA:TRUE,pathlen:0" -addext "keyUsage=critical,keyCertSign" \
    -keyout "$folder/ca.key" -out "$folder/ca.pem" 2>/dev/null

extensions=$(mktemp)
trap 'rm -f "$extensions"' EXIT
for name in "$@"; do
    mkdir -p "$folder/$name"
    case $name in *[!0-9.]*) kind=DNS ;; *.*.*.*) kind=IP ;; *) kind=DNS ;; esac
    printf 'subjectAltName=%s:%s\nbasicConstraints=critical,CA:FALSE\nextendedKeyUsage=serverAuth\n' "$kind" "$name" >"$extensions"
    openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/CN=$name" -keyout "$folder/$name/tls.key" 2>/dev/null |
        openssl x509 -req -days 730 -CA "$folder/ca.pem" -CAkey "$folder/ca.key" -CAcreateserial -extfile "$extensions" \
            -out "$folder/$name/tls.pem" 2>/dev/null
    cp "$folder/token" "$folder/ca.pem" "$folder/$name"
done

# Every machine that has a folder. The server reads this file; the others ignore it.
targets=$(cd "$folder" && for file in */tls.pem; do printf '"%s:6360"\n' "${file%/tls.pem}"; done | paste -sd, -)
printf '[{"targets": [%s]}]\n' "$targets" >"$folder/machines.json"
for file in "$folder"/*/tls.pem; do
    cp "$folder/machines.json" "${file%/tls.pem}"
done
echo "created in $folder: $*. On each machine, as root: install -d -m 750 -g 64360 /etc/memwatchd," \
    "then install -m 640 -g 64360 NAME/* /etc/memwatchd"
