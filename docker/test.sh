#!/bin/sh
# Build the image and run the compose federation for real: kill a client and the server in mid-run, and see it finish.
# Takes the Docker engine that is there, or as root starts one of its own, and makes a base image where none can be pulled.
#   CACHE=DIR keeps the base image's files and the wheels for the next time.
set -eu
cd "$(dirname "$0")/.."
cache=${CACHE:-$(pwd)/build/docker}
work=$(mktemp -d)
mkdir -p "$cache"
engine=""
copied=""
export COMPOSE_PROJECT_NAME="proxskip-test-$$"
export RUN="run-$$"

say() { echo "docker-test: $*"; }

compose() {
    if docker compose version >/dev/null 2>&1; then docker compose --file docker/compose.yaml "$@"
    else docker-compose --file docker/compose.yaml "$@"; fi
}

clean_up() {
    status=$?
    for one in $copied; do rm -f "docker/wheels/$one"; done
    compose logs --no-color >"$work/federation.log" 2>&1 || true
    compose down --volumes --timeout 5 >"$work/down.log" 2>&1 || true
    if [ -n "$engine" ]; then kill "$engine"; wait "$engine" || true; fi
    [ "$status" = 0 ] || say "FAILED; logs are in $work"
    [ "$status" != 0 ] || rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 1' INT TERM

if ! docker info >/dev/null 2>&1; then
    command -v dockerd >/dev/null || { say "there is no Docker engine, and no dockerd to start one"; exit 1; }
    say "starting an engine of its own"
    export DOCKER_HOST="unix://$work/docker.sock"
    dockerd --iptables=false --ip6tables=false --bridge=none --data-root="$cache/engine" --exec-root="$work/exec" \
        --pidfile="$work/dockerd.pid" --host="$DOCKER_HOST" >"$work/dockerd.log" 2>&1 &
    engine=$!
    for _ in $(seq 60); do docker info >/dev/null 2>&1 && break; sleep 1; done
    docker info >/dev/null
fi

export BASE_IMAGE="${BASE_IMAGE:-python:3.11-slim-bookworm}"
if ! docker image inspect "$BASE_IMAGE" >/dev/null 2>&1 && ! docker pull --quiet "$BASE_IMAGE" >/dev/null 2>&1; then
    export BASE_IMAGE=proxskip-base
    if ! docker image inspect "$BASE_IMAGE" >/dev/null 2>&1; then
        say "no image can be pulled: making one by debootstrap"
        [ -d "$cache/rootfs/usr" ] || debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates \
            bookworm "$cache/rootfs" >"$work/debootstrap.log"
        tar --directory "$cache/rootfs" --create . | docker import - "$BASE_IMAGE" >/dev/null
    fi
fi

if [ "$BASE_IMAGE" = proxskip-base ]; then
    say "no registry: the wheels are fetched out here"
    export PIP_OPTIONS=--no-index
    wheels="$cache/wheels"
    python3 -m pip download --quiet --quiet --disable-pip-version-check --dest "$wheels" '.[data,parquet]' 'setuptools>=77' wheel
    rm -f "$wheels"/sparse_proxskip-*
    for one in "$wheels"/*.whl; do
        [ -e "docker/wheels/$(basename "$one")" ] || copied="$copied $(basename "$one")"
        cp "$one" docker/wheels/
    done
fi

say "building"
compose build --quiet keys || compose build keys
docker image inspect --format 'docker-test: the image has {{.Size}} bytes, user {{.Config.User}}' sparse-proxskip

say "running; a client, then the server is killed in mid-run"
# Long enough that there is a middle, on any machine.
export SERVER_OPTIONS="--set rounds=${ROUNDS:-400} --set schedule.period=64"
compose up --detach
container() {
    docker ps --all --quiet --filter "label=com.docker.compose.project=$COMPOSE_PROJECT_NAME" \
        --filter "label=com.docker.compose.service=$1"
}
rounds() { docker exec "$(container server)" sh -c "wc -l < /runs/$RUN/rounds.jsonl" 2>/dev/null || echo 0; }
wait_for_rounds() {
    for _ in $(seq 600); do [ "$(rounds)" -ge "$1" ] && return; sleep 0.5; done
    compose logs --tail 20; say "only $(rounds) of $1 rounds were done in time"; exit 1
}
crash() {  # as a crash would: not by `docker kill`, after which nothing is started again
    say "killing $1 after $(rounds) rounds"
    kill -9 "$(docker inspect --format '{{.State.Pid}}' "$(container "$1")")"
}
wait_for_rounds 20
for one in server client-0; do
    docker inspect --format "docker-test: $one is {{.State.Health.Status}}" "$(container "$one")"
done
crash client-1
wait_for_rounds 60
crash server
restarts() { docker inspect --format '{{.RestartCount}}' "$(container "$1")"; }
for _ in $(seq 120); do [ "$(restarts server)" -ge 1 ] && break; sleep 0.5; done
say "the server was started again $(restarts server) time(s), client-1 $(restarts client-1) time(s)"
[ "$(restarts server)" -ge 1 ] && [ "$(restarts client-1)" -ge 1 ]
for _ in $(seq 1200); do
    [ "$(docker inspect --format '{{.State.Running}} {{.State.ExitCode}}' "$(container server)")" = "false 0" ] && break
    sleep 0.5
done
for one in client-0 client-1 client-2; do  # they are connected to the server as long as there is one
    docker inspect --format "docker-test: $one is running: {{.State.Running}}" "$(container "$one")"
done
docker run --rm --interactive --volume "${COMPOSE_PROJECT_NAME}_runs:/runs" sparse-proxskip python3 - "/runs/$RUN" <<'CHECK'
import json, sys
from pathlib import Path
folder = Path(sys.argv[1])
rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
audits = [one["control_sum_norm"] for one in rounds if one["control_sum_norm"] is not None]
assert (folder / "model.safetensors").exists(), "there is no final model"
assert [one["round"] for one in rounds] == list(range(1, len(rounds) + 1)), "a round is missing"
assert all(one["clients_counted"] == 3 for one in rounds), "a client was not counted"
assert audits and max(audits) < 1e-5, f"the control variates do not sum to zero: {max(audits)}"
print(f"docker-test: {len(rounds)} rounds, accuracy {rounds[-1]['metrics']['test_accuracy']:.3f}, "
      f"sum of control variates at most {max(audits):.1e} (relative)")
CHECK
say "passed"
