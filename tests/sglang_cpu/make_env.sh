#!/usr/bin/env bash
# make_env.sh - build a folder that makes a test host able to serve SGLang 0.5.20 on a CPU.
#
#   [TORCH_INDEX_URL=https://...] make_env.sh DEST [--full] [--python /usr/bin/python3] [--allow-cuda] [--in-place]
#
# DEST is a layer that is laid over a test host's root: root/ml-env (Python environment with the unmodified wheel),
# root/lab (stubs, runtime patches, check.py), root/models (random target and draft; pytiny/ = the trained pair of
# tests/models/pytiny). Built as DEST.part, then renamed; a second call with the same inputs returns at once.
# DEST must not be changed while a host that uses it is up.
#
# torch comes from what pip is configured with, or from the index that TORCH_INDEX_URL names. It is resolved first, and
# a CUDA build (gigabytes, of no use here) is refused with exit 3 before anything large is downloaded, unless --allow-cuda.
#
# The environment is built at its final path /root/ml-env (a bind mount in a private mount namespace), so that console
# scripts and RECORD are as on a real host. Needs root and a python3 of the host's version (3.11) with the venv module.
# --in-place builds for DEST/root/ml-env itself, without a mount and without root: for an ordinary user's own machine.
# --full keeps what only a GPU build needs (CUDA and ROCm files of triton, test and header folders of torch, debug
# information of libtriton): 2.6 GB instead of 1.6 GB. SGLang's own files are never touched.
set -euo pipefail
SELF=$(readlink -f "${BASH_SOURCE[0]}"); here=$(dirname "$SELF")
ENV=${MAKE_ENV_AT:-/root/ml-env}
PAIR=$here/../models/pytiny
TORCH=torch==2.13.0

check_torch() { # refuse a CUDA build of torch by its metadata, before its wheel is downloaded
  local python=$1 allow=$2 report
  report=$(mktemp)
  "$python" -m pip install -qq --dry-run --ignore-installed --no-deps --disable-pip-version-check --root-user-action=ignore \
    ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} --report "$report" "$TORCH" >&2
  "$python" -I - "$report" "$allow" <<'PY'
import json, re, sys
item = json.load(open(sys.argv[1]))["install"][0]
needs = [n for n in item["metadata"].get("requires_dist", []) if re.match(r"(nvidia|cuda)[-_]", n)]
version = item["metadata"]["version"]
if needs and "+cpu" not in version and sys.argv[2] == "no":
    sys.exit(
        f"make_env: pip would install a CUDA build of torch ({version} from {item['download_info']['url'].split('?')[0]}):\n"
        "  several GB, of no use on this CPU-only environment; it was not downloaded.\n"
        "  next: TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu make_env.sh ...   (or --allow-cuda)"
    )
PY
  local rc=$?; rm -f "$report"; return $rc
}

build() { # $1 = the layer, in the private mount namespace, with $ENV mounted
  local layer=$1 full=$2 python=$3 sp
  lap() { printf '%-10s %5.1f s\n' "$1" "$(awk "BEGIN{print $(date +%s.%N)-$T}")" >&2; T=$(date +%s.%N); }
  T=$(date +%s.%N)
  cd /
  "$python" -m venv "$ENV"; sp=$("$ENV/bin/python" -I -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  check_torch "$ENV/bin/python" "$4" || exit 3
  # two installers side by side: they unpack different distributions, and unpacking is bound to one core each
  local pip=("$ENV/bin/python" -m pip install -qq --no-deps --no-compile --disable-pip-version-check --root-user-action=ignore) a b
  { "${pip[@]}" ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} "$TORCH" && "${pip[@]}" "$(grep '^triton==' "$here/requirements.txt")"; } >&2 & a=$!
  "${pip[@]}" sglang==0.5.20 -r <(grep -v '^triton==' "$here/requirements.txt") >&2 & b=$!
  wait "$a" || { kill "$b" 2>/dev/null; exit 1; }; wait "$b" || exit 1; lap install
  if [ "$full" = no ]; then
    rm -rf "$sp"/triton/backends/nvidia/{lib,bin,include} "$sp"/triton/backends/amd/{lib,include} \
      "$sp"/triton/{instrumentation,plugins,include,FileCheck} "$sp"/triton/_C/libproton.so \
      "$sp"/torch/{test,include,share} "$sp"/torch/bin/{protoc*,*Test*,test_*,*.ptl}
    ! command -v strip >/dev/null || strip --strip-unneeded "$sp/triton/_C/libtriton.so"
    lap slim
  fi
  mkdir -p "$layer/root/lab" "$layer/root/models"
  cp -r "$here/stubs" "$here/runtime" "$here/check.py" "$layer/root/lab/"
  [ ! -d "$PAIR" ] || { mkdir "$layer/root/models/pytiny"; cp -r "$PAIR"/. "$layer/root/models/pytiny/"; }
  TQDM_DISABLE=1 "$ENV/bin/python" -B "$here/make_tiny_models.py" "$layer/root/models" >/dev/null & a=$!
  # byte code of what a server imports, here once instead of in every host's own disk (10 s and 140 MB each)
  ( export PYTHONPATH=$layer/root/lab/stubs SGLANG_USE_CPU_ENGINE=1 TRITON_INTERPRET=1 HF_HUB_OFFLINE=1; unset PYTHONDONTWRITEBYTECODE
    "$ENV/bin/python" -W ignore -c '
import torch; assert torch.version.cuda is None, "a CPU build of torch is needed, this one is for CUDA " + torch.version.cuda
import sglang.launch_server, sglang.srt.entrypoints.http_server, sglang.srt.managers.scheduler, sglang.srt.managers.detokenizer_manager
import sglang.srt.speculative.dflash_worker_v2, sglang.srt.models.registry' >/dev/null 2>"$layer/warm.log" ) & b=$!
  wait "$a" || { kill "$b" 2>/dev/null; exit 1; }; wait "$b" || { tail -5 "$layer/warm.log" >&2; exit 1; }
  rm -f "$layer/warm.log"; lap warm
}

[ "${1:-}" = _build ] && { build "$2" "$3" "$4" "$5"; exit; }
dest='' full=no allow=no place=layer python=/usr/bin/python3
while [ $# -gt 0 ]; do
  case $1 in --full) full=yes ;; --allow-cuda) allow=yes ;; --in-place) place=here ;; --python) python=$2; shift ;; -*) sed -n '2,19p' "$SELF" >&2; exit 2 ;; *) dest=$1 ;; esac; shift
done
[ -n "$dest" ] || { sed -n '2,19p' "$SELF" >&2; exit 2; }
[ "$(id -u)" = 0 ] || [ $place = here ] || { echo "make_env: needs root (private mount namespace)" >&2; exit 77; }
mkdir -p "$(dirname "$dest")"; dest=$(readlink -m "$dest")
key=$(cd "$here" && { cat make_env.sh make_tiny_models.py check.py requirements.txt; find stubs runtime -type f ! -name '*.pyc' | sort | xargs cat; [ ! -d "$PAIR" ] || find "$PAIR" -type f | sort | xargs cat; echo "$full"; "$python" -VV; } | sha256sum | cut -c1-16)
exec 9>"$dest.lock"; flock 9
[ "$(cat "$dest/.made" 2>/dev/null)" = "$key" ] && { echo "$dest"; exit; }
if [ $place = here ]; then
  rm -rf --one-file-system "$dest"; mkdir -p "$dest/root/ml-env"
  MAKE_ENV_AT=$dest/root/ml-env bash "$SELF" _build "$dest" "$full" "$python" "$allow" 9>&-
  echo "$key" > "$dest/.made"; echo "$dest"; exit
fi
rm -rf --one-file-system "$dest.part"; mkdir -p "$dest.part/root/ml-env"; chmod 700 "$dest.part/root"
made=''; [ -d "$ENV" ] || { mkdir "$ENV"; made=1; }
trap '[ -z "$made" ] || rmdir "$ENV" 2>/dev/null || true' EXIT
unshare --mount --propagation private bash -c 'mount --bind "$1/root/ml-env" "$2" && shift 2 && exec bash "$@"' _ "$dest.part" "$ENV" "$SELF" _build "$dest.part" "$full" "$python" "$allow" 9>&-
echo "$key" > "$dest.part/.made"
rm -rf --one-file-system "$dest"; mv "$dest.part" "$dest"
echo "$dest"
