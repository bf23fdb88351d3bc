#!/usr/bin/env bash
# A headless Chromium for the tests of report.html: Debian's smallest package of it (60 MB to fetch, a few seconds), as
# root where apt-get is. Anywhere else it says what is missing; the tests then skip, or fail under REQUIRE_CHROMIUM=1.
set -uo pipefail
for name in chromium-headless-shell chromium chromium-browser google-chrome; do
  command -v "$name" >/dev/null && exit 0
done
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed here: chromium (report.html is then not opened in a browser by the tests)" >&2
  exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq)
install() { "${apt[@]}" install -y --no-install-recommends "$1" </dev/null >/dev/null; }
echo "installing chromium-headless-shell" >&2
"${apt[@]}" update >&2
install chromium-headless-shell || install chromium || echo "no chromium could be installed" >&2
