#!/bin/sh
# Builds the page that draws dashboards with Grafana's own UI library, in a folder of its own (about 480 MB of packages).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "${1:?give a folder to build in}/www"
cd "$1"
[ -d node_modules/@grafana/ui ] || npm install --ignore-scripts --no-fund --no-audit \
    @grafana/ui@13.2.2 @grafana/data@13.2.3 react@19 react-dom@19 esbuild
cp "$here/page.jsx" page.jsx
echo 'export default {};' > empty.js
npx esbuild page.jsx --bundle --outfile=www/page.js --format=iife --main-fields=module,main \
    --define:process.env.NODE_ENV=\"production\" --define:global=window --log-level=error \
    --loader:.svg=dataurl --loader:.woff2=dataurl --loader:.ttf=dataurl --loader:.png=dataurl \
    --alias:stream=./empty.js --alias:tty=./empty.js --alias:util=./empty.js
cat > www/index.html <<'HTML'
<!doctype html><meta charset="utf-8"><title>dashboard</title><link rel="stylesheet" href="page.css"><style>body{margin:0}</style><div id="root"></div><script src="page.js"></script>
HTML
