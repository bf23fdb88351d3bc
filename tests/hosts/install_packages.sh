#!/usr/bin/env bash
# Debian packages that the real test hosts need. Installs what is missing (root on Debian or Ubuntu); anywhere else it
# says what is missing and lets the caller go on: the tests that need it skip, or fail under REQUIRE_TESTHOST=1.
set -euo pipefail
PATH=$PATH:/usr/sbin:/sbin
declare -A package=(
  [ssh]=openssh-client [sshd]=openssh-server [ip]=iproute2 [mkfs.ext4]=e2fsprogs [losetup]=mount [nft]=nftables
  [mmdebstrap]=mmdebstrap [unshare]=util-linux [pgrep]=procps [git]=git [strip]=binutils [make]=make [curl]=curl
)
missing=()
for command in "${!package[@]}"; do command -v "$command" >/dev/null || missing+=("${package[$command]}"); done
python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
[ ${#missing[@]} != 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "not installed here: ${missing[*]} (real test hosts need root on Debian or Ubuntu with these packages)" >&2
  exit 0
fi
echo "installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt=(apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq)
"${apt[@]}" update >&2
"${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null >/dev/null
