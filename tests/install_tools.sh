#!/bin/sh
# Installs what tests use beside Python, where this machine lets us: a C compiler for the stand-in NVML library, Prometheus
# with promtool, VictoriaMetrics, Alertmanager with amtool, systemd-analyze and a browser.
# Elsewhere it says what is missing, and the tests that need it are skipped loudly.
set -u
missing=""
for pair in cc:gcc promtool:prometheus prometheus:prometheus victoria-metrics:victoria-metrics amtool:prometheus-alertmanager \
    prometheus-alertmanager:prometheus-alertmanager systemd-analyze:systemd chromium:chromium; do
    command -v "${pair%%:*}" >/dev/null 2>&1 && continue
    case " $missing " in *" ${pair##*:} "*) ;; *) missing="$missing ${pair##*:}" ;; esac
done
[ -z "$missing" ] && exit 0
case "$missing" in *gcc*) missing="$missing libc6-dev" ;; esac
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null && exit 0
    echo "could not install:$missing" >&2
else
    echo "not installed:$missing (needs root and apt-get); the tests that need them will be skipped" >&2
fi
[ -z "${CI:-}" ]
