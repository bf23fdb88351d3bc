#!/usr/bin/env bash
# testhost.sh - real test hosts (systemd as PID 1, OpenSSH, own root file system,
# own network namespace and address) on one Linux machine, from plain namespaces.
# No docker, no systemd on the outside, no mount and no netns name left outside.
#
#   testhost.sh check            0 = can run here; 77 = cannot, the reason on stderr (a test skips)
#   testhost.sh image            build the root file system once (cached), print its path
#   testhost.sh up [N]           tear down leftovers, start N hosts h1..hN, wait until all are up
#   testhost.sh add              one more host (own TESTHOST_LAYER, TESTHOST_DISK, TESTHOST_BIND), waits until it is up
#   testhost.sh rm hK            end this host, forget its disk and keys
#   testhost.sh run -- CMD...    run CMD in the control namespace (only there the hosts are reachable)
#   testhost.sh in hK -- CMD...  run CMD inside the host, past ssh (faults, debugging)
#   testhost.sh net hK down|up|loss PCT|rate KBIT|refuse|clear     network faults
#   testhost.sh disk hK fill|empty|ro|rw [PATH] [LEAVE_KIB] | abort       disk faults
#   testhost.sh power hK kill|off|on|freeze|thaw|reboot|state      power faults
#   testhost.sh wait hK [SECS]   wait until systemd is up and sshd answers
#   testhost.sh stat             memory, disk and pids of each host
#   testhost.sh down             end everything this instance started
#
# TESTHOST_NAME  instance (default th): two instances can live side by side
# TESTHOST_STATE state folder (default /run/testhost/$NAME): hosts.json ssh_config known_hosts id
# TESTHOST_CACHE image cache (default /var/cache/testhost)
# TESTHOST_DISK  size of each host's own disk (default 2G, sparse)
# TESTHOST_SYNC  1: the hosts' fsync waits for the disk (default: it returns at once)
# TESTHOST_BIND  "src:dst[:rw] ..." folders shown inside every host, read-only unless :rw
# TESTHOST_LAYER "dir[:dir...]" laid over the image, first on top (an environment, a fake nvidia-smi, ...): read-only, shared
# TESTHOST_OWNER pid of a test run: when it is gone, the instance is taken down (up only)
# TESTHOST_IMAGE mm = mmdebstrap root (default); host = overlay over this machine's own /
# TESTHOST_HIDE  with TESTHOST_IMAGE=host: folders of this machine to hide behind a tmpfs (default "/root /home /mnt")
set -euo pipefail
SELF=$(readlink -f "${BASH_SOURCE[0]}")
export PATH=/usr/local/sbin:/usr/sbin:/sbin:$PATH LC_ALL=C
NAME=${TESTHOST_NAME:-th}
S=${TESTHOST_STATE:-/run/testhost/$NAME}
CACHE=${TESTHOST_CACHE:-/var/cache/testhost}
DISK=${TESTHOST_DISK:-2G}
IMAGE=${TESTHOST_IMAGE:-mm}
NET=${TESTHOST_NET:-10.213.0}          # lives only in our namespaces: no route leads there from outside
BOOT_TIMEOUT=${TESTHOST_BOOT_TIMEOUT:-90}
SUITE=bookworm
PKGS=systemd,systemd-sysv,dbus,libpam-systemd,openssh-server,sudo,python3,python3-venv,git,rsync,procps,iproute2,ca-certificates
HOST_PKGS="openssh-client iproute2 util-linux mmdebstrap nftables e2fsprogs"
MASK="dev-hugepages.mount dev-mqueue.mount sys-kernel-debug.mount sys-kernel-tracing.mount sys-kernel-config.mount
 sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount systemd-binfmt.service
 getty@tty1.service console-getty.service getty.target serial-getty@.service modprobe@.service systemd-modules-load.service kmod-static-nodes.service
 e2scrub_reap.service e2scrub_all.timer fstrim.timer apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer
 systemd-timesyncd.service systemd-pstore.service systemd-sysctl.service systemd-udevd.service systemd-udev-trigger.service
 systemd-udevd-control.socket systemd-udevd-kernel.socket postgresql.service machines.target networking.service"

die() { echo "testhost: $*" >&2; exit 1; }
skip() { echo "SKIP testhost: $*" >&2; exit 77; }
alive() { [ -n "${1:-}" ] && [ -d "/proc/$1" ]; }
ours() { alive "${1:-}" && tr '\0' ' ' < "/proc/$1/cmdline" 2>/dev/null | grep -q -- "$2"; }
rd() { cat "$1" 2>/dev/null || true; }
hosts() { [ -d "$S" ] && (cd "$S" && ls -d h[0-9]* 2>/dev/null | sort -V) || true; }

cg_base() { # a folder of the cgroup2 tree that we may write to: our own cgroup there
  local m p; m=$(awk '$3=="cgroup2"{print $2; exit}' /proc/mounts)
  p=$(sed -n 's/^0:://p' /proc/self/cgroup)
  [ -n "$m" ] && [ -w "$m${p%/}/cgroup.procs" ] && echo "$m${p%/}"
}

check() {
  [ "$(uname -s)" = Linux ] || skip "needs Linux, this is $(uname -s)"
  [ "$(id -u)" = 0 ] || skip "needs root (namespaces, mounts, loop disks); uid is $(id -u)"
  local t; for t in ssh ssh-keygen ip unshare nsenter setpriv mkfs.ext4 flock; do
    command -v $t >/dev/null || skip "missing command $t: apt-get install $HOST_PKGS"; done
  [ "$IMAGE" = host ] || [ -d "$(image_dir)" ] || command -v mmdebstrap >/dev/null || skip "missing command mmdebstrap: apt-get install $HOST_PKGS"
  unshare --mount --pid --net --uts --ipc --cgroup --fork true 2>/dev/null || skip "this kernel or container refuses new namespaces"
  grep -qw overlay /proc/filesystems || skip "no overlayfs in this kernel"
  grep -qw cgroup2 /proc/filesystems || skip "no cgroup2 in this kernel"
  cg_base >/dev/null || skip "no writable cgroup2 tree"
  [ -e /dev/loop-control ] || skip "no loop devices"
}

image_dir() {
  if [ "$IMAGE" = host ]; then echo /; return; fi
  echo "$CACHE/$SUITE-$(dpkg --print-architecture 2>/dev/null || uname -m)-$(echo "$SUITE $PKGS v1" | sha256sum | cut -c1-12)"
}

image() {
  local d; d=$(image_dir); [ "$IMAGE" = host ] && { echo "$d"; return; }
  if [ ! -d "$d" ]; then
    mkdir -p "$CACHE"
    ( flock 9
      [ -d "$d" ] && exit 0
      rm -rf --one-file-system "$d.part"
      # the sources of the machine itself: no mirror is named here
      local src=() f; for f in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do [ -s "$f" ] && { src=("$f"); break; }; done
      mmdebstrap --quiet --mode=root --variant=minbase --include="$PKGS" \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
        --dpkgopt='path-exclude=/usr/share/locale/*' --aptopt='Acquire::Languages "none"' \
        --customize-hook='rm -f "$1"/etc/ssh/ssh_host_*; useradd --root "$1" -m -s /bin/bash ops; echo "ops ALL=(ALL) NOPASSWD: ALL" > "$1"/etc/sudoers.d/ops; chmod 440 "$1"/etc/sudoers.d/ops; mkdir -p "$1"/var/log/journal' \
        "$SUITE" "$d.part" "${src[@]}" </dev/null >&2
      mv "$d.part" "$d" ) 9>"$CACHE/.lock" 8>&-
  fi
  echo "$d"
}

# ---- inside the new namespaces, PID 1 until it turns into systemd --------------------
_init() {
  local h=$1 lower=$2 m=$S/$1/m R d
  mount --make-rprivate /
  mount -o loop,noatime "$S/$h/disk.img" "$m"
  mkdir -p "$m/up" "$m/wk" "$m/root"; R=$m/root
  # volatile: copying a file up from a layer does not wait for the disk (4600 files of a package: 30 s of fsync on a
  # busy machine). The kernel outlives every "power cut" here, so nothing is lost; its mark must go before a reboot.
  local sync=volatile; [ -z "${TESTHOST_SYNC:-}" ] || sync=index=off
  rm -rf "$m/wk/work/incompat"
  mount -t overlay -o "lowerdir=${TESTHOST_LAYER:+$TESTHOST_LAYER:}$lower,upperdir=$m/up,workdir=$m/wk,$sync" overlay "$R"
  mkdir -p "$R/proc" "$R/sys" "$R/dev" "$R/run" "$R/tmp" "$R/.old"
  mount -t proc -o nosuid,nodev,noexec proc "$R/proc"
  # kernel-wide knobs of the machine stay read-only; only the host's own net.* is writable
  for d in sys sysrq-trigger irq bus fs; do
    [ -e "$R/proc/$d" ] || continue
    mount --bind "$R/proc/$d" "$R/proc/$d"
  done
  mount --bind "$R/proc/sys/net" "$R/proc/sys/net"
  # a boot id of its own for each boot, else journalctl -b / --list-boots see one long boot
  cat /proc/sys/kernel/random/uuid > "$m/boot_id"; chmod 444 "$m/boot_id"
  mount --bind "$m/boot_id" "$R/proc/sys/kernel/random/boot_id"
  for d in sys sysrq-trigger irq bus fs; do
    [ -e "$R/proc/$d" ] && mount -o remount,bind,ro,nosuid,nodev,noexec "$R/proc/$d"
  done
  mount -t sysfs -o nosuid,nodev,noexec,ro sysfs "$R/sys"
  mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 "$R/sys/fs/cgroup"
  mount -t tmpfs -o mode=755,size=1m,nosuid dev "$R/dev"
  for d in null zero full random urandom tty; do cp -a "/dev/$d" "$R/dev/"; done
  mkdir "$R/dev/pts" "$R/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620,gid=5,nosuid,noexec devpts "$R/dev/pts"
  ln -s pts/ptmx "$R/dev/ptmx"; ln -s /proc/self/fd "$R/dev/fd"
  ln -s fd/0 "$R/dev/stdin"; ln -s fd/1 "$R/dev/stdout"; ln -s fd/2 "$R/dev/stderr"
  mount -t tmpfs -o mode=1777,nosuid,nodev,size=256m shm "$R/dev/shm"
  mount -t tmpfs -o mode=755,nosuid,nodev,size=64m run "$R/run"
  mount -t tmpfs -o mode=1777,nosuid,nodev,size=512m tmp "$R/tmp"
  mkdir -m 700 "$R/run/.testhost-disk"; mount --bind "$m" "$R/run/.testhost-disk"   # only for: disk hK abort
  [ "$IMAGE" != host ] || for d in ${TESTHOST_HIDE:-/root /home /mnt}; do [ ! -d "$R$d" ] || mount -t tmpfs -o mode=755 none "$R$d"; done
  for d in ${TESTHOST_BIND:-}; do
    local src dst mode; IFS=: read -r src dst mode <<<"$d"
    mkdir -p "$R$dst"; mount --bind "$src" "$R$dst"
    [ "${mode:-ro}" = rw ] || mount -o remount,bind,ro "$R$dst"
  done
  if [ ! -e "$m/seeded" ]; then
    echo "$h" > "$R/etc/hostname"; cp "$S/$h/machine-id" "$R/etc/machine-id"
    cp "$S/hosts" "$R/etc/hosts"; rm -f "$R/etc/resolv.conf"; : > "$R/etc/resolv.conf"
    rm -f "$R"/etc/ssh/ssh_host_*; cp "$S/$h/ssh_host_ed25519_key" "$S/$h/ssh_host_ed25519_key.pub" "$R/etc/ssh/"
    mkdir -p "$R/etc/ssh/sshd_config.d" "$R/var/log/journal"; touch "$R/etc/default/locale"
    printf '%s\n' 'HostKey /etc/ssh/ssh_host_ed25519_key' 'PermitRootLogin prohibit-password' \
      'PasswordAuthentication no' 'KbdInteractiveAuthentication no' 'UseDNS no' 'PrintMotd no' > "$R/etc/ssh/sshd_config.d/10-testhost.conf"
    ln -sf /lib/systemd/system/multi-user.target "$R/etc/systemd/system/default.target"
    for d in $MASK; do ln -sf /dev/null "$R/etc/systemd/system/$d"; done
    : > "$m/seeded"
  fi
  for d in root:0 home/ops:1000; do
    [ -d "$R/${d%:*}" ] || continue
    mkdir -p "$R/${d%:*}/.ssh"; cp "$S/id.pub" "$R/${d%:*}/.ssh/authorized_keys"
    chown -R "${d#*:}:${d#*:}" "$R/${d%:*}/.ssh"; chmod 700 "$R/${d%:*}/.ssh"; chmod 600 "$R/${d%:*}/.ssh/authorized_keys"
  done
  hostname "$h"
  cd "$R"; pivot_root . .old; umount -l /.old
  exec env -i container=testhost PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 \
    setpriv --bounding-set=-sys_time,-sys_module,-sys_rawio,-mknod,-syslog,-bpf,-perfmon,-audit_control,-mac_admin,-wake_alarm \
    /lib/systemd/systemd --log-target=journal
}

# ---- the host's "power supply": owns its netns, starts it again on reboot ---------------
_sup() {
  local h=$1 lower=$2 rc cg; cg=$(rd "$S/$h/cgroup"); trap 'exit 0' TERM
  ip link set lo up
  while :; do
    if [ "$(rd "$S/$h/want")" != on ]; then sleep 0.1; continue; fi
    rm -f "$S/$h/pid"
    ( echo "$BASHPID" > "$cg/cgroup.procs"
      exec setpriv --pdeathsig KILL unshare --mount --pid --uts --ipc --cgroup --fork --kill-child \
        bash "$SELF" _init "$h" "$lower" ) </dev/null >>"$S/$h/console.log" 2>&1 &
    local u=$! i c=""; for i in $(seq 200); do c=$(pgrep -P "$u" 2>/dev/null | head -1) || true; [ -n "$c" ] && break; alive "$u" || break; sleep 0.01; done
    echo "$c" > "$S/$h/pid"
    rc=0; wait "$u" || rc=$?
    echo "$(date +%T.%N) host $h: pid 1 ended, status $rc" >> "$S/$h/console.log"
    rm -f "$S/$h/pid"
    # the kernel ends a pid namespace's init with SIGHUP for reboot(RESTART), SIGINT for halt and power-off
    [ "$rc" = 129 ] || echo off > "$S/$h/want"
  done
}

_ctl() { ip link set lo up; ip link add br0 type bridge; ip addr add "$NET.1/24" dev br0; ip link set br0 up; : > "$S/ctl.ready"; exec -a "testhost-ctl-$NAME" sleep infinity; }

ctl() { local p; p=$(rd "$S/ctl.pid"); alive "$p" || die "not up (no control namespace)"; nsenter -t "$p" -n "$@"; }
hostns() { local p h=$1; shift; p=$(rd "$S/$h/sup.pid"); alive "$p" || die "no host $h"; nsenter -t "$p" -n "$@"; }
inhost() { local p h=$1; shift; p=$(rd "$S/$h/pid"); alive "$p" || die "host $h is off"
  nsenter -t "$p" -m -u -i -n -p -C -- env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM="${TERM:-dumb}" LANG=C.UTF-8 "$@"; }

wait_host() {
  local h=$1 end=$((SECONDS + ${2:-$BOOT_TIMEOUT})) st="" ip; ip=$(rd "$S/$h/ip")
  while [ $SECONDS -le $end ]; do
    if [ -s "$S/$h/pid" ]; then
      st=$(inhost "$h" systemctl is-system-running 2>/dev/null) || true
      case $st in running|degraded)
        if ctl timeout 2 bash -c "exec 3<>/dev/tcp/$ip/22 && read -r -t 2 l <&3 && [[ \$l == SSH-* ]]" 2>/dev/null; then echo "$h $st"; return 0; fi;; esac
    fi
    ours "$(rd "$S/$h/sup.pid")" "_sup $h" || { tail -20 "$S/$h/console.log" >&2; die "host $h: its supervisor ended"; }
    sleep 0.1
  done
  echo "--- console of $h" >&2; tail -20 "$S/$h/console.log" >&2 || true
  die "host $h is not up (state '${st:-none}')"
}

# one more host: its disk, its keys, its link; does not wait for it
start_host() {
  local h=$1 lower=$2 base=$3 ip i k=${1#h}
  ip=$NET.$((10 + k)); mkdir -p "$S/$h/m"; echo "$ip" > "$S/$h/ip"; echo on > "$S/$h/want"
  echo "$base/testhost-$NAME-$h" > "$S/$h/cgroup"; mkdir -p "$base/testhost-$NAME-$h"
  tr -d - < /proc/sys/kernel/random/uuid > "$S/$h/machine-id"
  ssh-keygen -q -t ed25519 -N '' -C "root@$h" -f "$S/$h/ssh_host_ed25519_key"
  echo "$ip,$h $(cut -d' ' -f1,2 "$S/$h/ssh_host_ed25519_key.pub")" >> "$S/known_hosts"
  grep -q " $h\$" "$S/hosts" || echo "$ip $h" >> "$S/hosts"
  truncate -s "$DISK" "$S/$h/disk.img"; mkfs.ext4 -q -F -m 0 -O ^has_journal -E lazy_itable_init=1,nodiscard "$S/$h/disk.img"
  printf 'Host %s\n  HostName %s\n  User root\n  IdentityFile %s\n  IdentitiesOnly yes\n  IdentityAgent none\n  UserKnownHostsFile %s\n  GlobalKnownHostsFile /dev/null\n  StrictHostKeyChecking yes\n  BatchMode yes\n  ConnectTimeout 5\n' "$h" "$ip" "$S/id" "$S/known_hosts" >> "$S/ssh_config"
  setsid unshare --net bash "$SELF" _sup "$h" "$lower" </dev/null >"$S/$h/sup.log" 2>&1 8>&- & echo $! > "$S/$h/sup.pid"
}

link_host() { # the veth pair: the host's eth0 in its own netns, v-hK on the control bridge
  local h=$1 p; p=$(rd "$S/$h/sup.pid")
  for _ in $(seq 300); do ours "$p" "_sup $h" && [ "$(readlink "/proc/$p/ns/net")" != "$(readlink /proc/self/ns/net)" ] && break; sleep 0.01; done
  ctl ip link add "v-$h" type veth peer name eth0 netns "$p"
  ctl ip link set "v-$h" master br0 up
  hostns "$h" ip addr add "$(rd "$S/$h/ip")/24" dev eth0; hostns "$h" ip link set eth0 up
}

list_hosts() { # [hK...]: the JSON that tests read; default all
  local h sep=''; [ $# != 0 ] || set -- $(hosts)
  printf '{"control_pid": %s, "hosts": [' "$(cat "$S/ctl.pid")"
  for h; do
    printf '%s{"name": "%s", "address": "%s", "port": 22, "user": "root", "key": "%s", "known_hosts": "%s", "ssh_config": "%s", "pid1": %s}' \
      "$sep" "$h" "$(rd "$S/$h/ip")" "$S/id" "$S/known_hosts" "$S/ssh_config" "$(rd "$S/$h/pid")"; sep=', '; done
  printf ']}\n'
}

up() {
  local n=${1:-1} i lower base
  check; lower=$(image); base=$(cg_base); down
  mkdir -p "$S"; chmod 700 "$S"
  ssh-keygen -q -t ed25519 -N '' -C testhost -f "$S/id"
  echo "127.0.0.1 localhost" > "$S/hosts"; : > "$S/known_hosts"; : > "$S/ssh_config"
  setsid unshare --net bash "$SELF" _ctl </dev/null >"$S/ctl.log" 2>&1 8>&- & echo $! > "$S/ctl.pid"
  for i in $(seq 500); do [ -e "$S/ctl.ready" ] && break; sleep 0.01; done; [ -e "$S/ctl.ready" ] || die "$(cat "$S/ctl.log")"
  if [ -n "${TESTHOST_OWNER:-}" ]; then setsid bash "$SELF" _watch "$TESTHOST_OWNER" "$(cat "$S/ctl.pid")" </dev/null >/dev/null 2>&1 8>&- & fi
  for i in $(seq "$n"); do start_host "h$i" "$lower" "$base"; done
  for i in $(seq "$n"); do link_host "h$i"; done
  for i in $(seq "$n"); do wait_host "h$i" >&2; done
  list_hosts | tee "$S/hosts.json"
}

add() { # hK: the lowest free number; prints the same JSON as `up`, with this host alone
  local k=1 h
  alive "$(rd "$S/ctl.pid")" || die "not up: testhost.sh up 0 first"
  while [ -e "$S/h$k" ]; do k=$((k + 1)); done; h=h$k
  start_host "$h" "$(image)" "$(cg_base)"; link_host "$h"; wait_host "$h" >&2
  list_hosts > "$S/hosts.json"; list_hosts "$h"
}

# a host's supervisor ends first: pdeathsig and --kill-child take the host along
kill_host() {
  local h=$1 p c; p=$(rd "$S/$h/sup.pid"); c=$(rd "$S/$h/cgroup")
  echo off > "$S/$h/want"
  ours "$p" "_sup $h" && kill -KILL "$p" 2>/dev/null || true
  [ -w "$c/cgroup.kill" ] && echo 0 > "$c/cgroup.freeze" && echo 1 > "$c/cgroup.kill" || true
}

wait_gone() { # no process in its cgroup, and its disk let go
  local h=$1 i
  for i in $(seq 500); do
    [ -z "$(rd "$(rd "$S/$h/cgroup")/cgroup.procs")$(losetup -n -O NAME -j "$S/$h/disk.img" 2>/dev/null)" ] && ! ours "$(rd "$S/$h/sup.pid")" "_sup $h" && break; sleep 0.02; done
}

rm_host() { # its key leaves known_hosts too: the next host with this number has another one
  local h=$1 ip; [ -d "$S/$h" ] || die "no host $h"; ip=$(rd "$S/$h/ip")
  kill_host "$h"; wait_gone "$h"; sweep_cg "$h"
  rm -rf --one-file-system "${S:?}/$h"
  sed -i "/^$ip,$h /d" "$S/known_hosts"; sed -i "/^Host $h\$/,/ConnectTimeout/d" "$S/ssh_config"; sed -i "/^$ip $h\$/d" "$S/hosts"
  list_hosts > "$S/hosts.json"
}

down() {
  [ -d "$S" ] || { sweep_cg 'h*'; return 0; }
  local h p
  for h in $(hosts); do kill_host "$h"; done
  p=$(rd "$S/ctl.pid"); ours "$p" "testhost-ctl-$NAME\|_ctl" && kill -KILL "$p" 2>/dev/null || true
  for h in $(hosts); do wait_gone "$h"; done
  sweep_cg 'h*'
  rm -rf --one-file-system "$S"; rmdir "$(dirname "$S")" 2>/dev/null || true
}
sweep_cg() { # PATTERN: the empty cgroup folders of these hosts
  local b d i; b=$(cg_base) || return 0
  for d in "$b/testhost-$NAME-"$1; do
    [ -d "$d" ] || continue
    for i in $(seq 100); do find "$d" -depth -type d -exec rmdir {} + 2>/dev/null || true; [ -d "$d" ] || break; sleep 0.02; done
  done
}

# a test run that was killed must not leave hosts behind: its death takes them down
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }   # start time in clock ticks: tells a reused pid
_watch() {
  local t; t=$(born "$1")
  while [ -n "$t" ] && [ "$(born "$1")" = "$t" ] && [ "$(rd "$S/ctl.pid")" = "$2" ]; do sleep 1; done
  [ "$(rd "$S/ctl.pid")" != "$2" ] || bash "$SELF" down
}

nft_() { # hK [CHAIN...]: replaces this script's rules in the host's namespace, atomically
  local h=$1; shift; command -v nft >/dev/null || die "missing command nft: apt-get install nftables"
  { printf 'table inet testhost {\n}\ndelete table inet testhost\n'; [ $# = 0 ] || { printf 'table inet testhost {\n'; printf '%s\n' "$@"; printf '}\n'; }; } | hostns "$h" nft -f -
}

disk() { # disk faults; everything but abort is undone by its counterpart, abort by: power hK kill; power hK on
  local h=$1 what=$2 path=${3:-/} leave=${4:-0}
  case $what in
    fill)  inhost "$h" sh -c 'a=$(df -k --output=avail "$1" | tail -1); f="${1%/}/.fill"; fallocate -l $((a - $2))K "$f" || head -c $(((a - $2) * 1024)) /dev/zero > "$f"; df -k "$1" | tail -1' sh "$path" "$leave" ;;
    empty) inhost "$h" rm -f "${path%/}/.fill" ;;
    ro)    inhost "$h" sh -c 'mkdir -p "$1" && mount --bind "$1" "$1" && mount -o remount,bind,ro "$1"' sh "$path" ;;
    rw)    inhost "$h" umount -l "$path" ;;
    abort) inhost "$h" mount -o remount,abort /run/.testhost-disk ;;   # as after a disk error: root turns read-only
    *) die "disk: fill|empty|ro|rw [PATH] [LEAVE_KIB] | abort" ;;
  esac
}

net() {
  local h=$1 what=$2 arg=${3:-}
  case $what in
    down|up) ctl ip link set "v-$h" "$what" ;;
    loss)   nft_ "$h" "chain i { type filter hook input priority 0; iifname lo accept; numgen random mod 100 < $arg drop; }" \
                      "chain o { type filter hook output priority 0; oifname lo accept; numgen random mod 100 < $arg drop; }" ;;
    refuse) nft_ "$h" "chain i { type filter hook input priority 0; iifname eth0 meta l4proto tcp reject with tcp reset; }" ;;
    rate)   hostns "$h" tc qdisc replace dev eth0 root tbf rate "${arg}kbit" burst 16kb latency 400ms
            ctl tc qdisc replace dev "v-$h" root tbf rate "${arg}kbit" burst 16kb latency 400ms ;;
    clear)  nft_ "$h"
            hostns "$h" tc qdisc del dev eth0 root 2>/dev/null || true; ctl tc qdisc del dev "v-$h" root 2>/dev/null || true; ctl ip link set "v-$h" up ;;
    *) die "net: down|up|loss PCT|rate KBIT|refuse|clear" ;;
  esac
}

power() {
  local h=$1 cg p i; cg=$(rd "$S/$h/cgroup"); p=$(rd "$S/$h/pid")
  case $2 in
    kill)   echo off > "$S/$h/want"; echo 0 > "$cg/cgroup.freeze"; alive "$p" && kill -KILL "$p"; for i in $(seq 500); do [ -e "$S/$h/pid" ] || break; sleep 0.02; done ;;
    off)    inhost "$h" systemctl poweroff; for i in $(seq 1500); do [ -e "$S/$h/pid" ] || break; sleep 0.02; done; [ ! -e "$S/$h/pid" ] ;;
    on)     echo on > "$S/$h/want"; wait_host "$h" ;;
    reboot) inhost "$h" systemctl reboot || true; for i in $(seq 1500); do [ "$(rd "$S/$h/pid")" != "$p" ] && break; sleep 0.02; done; wait_host "$h" ;;
    freeze) echo 1 > "$cg/cgroup.freeze" ;;
    thaw)   echo 0 > "$cg/cgroup.freeze" ;;
    state)  alive "$p" && echo on || echo off ;;
    *) die "power: kill|off|on|freeze|thaw|reboot|state" ;;
  esac
}

stat_() {
  local h pid pss n; for h in $(hosts); do pss=0 n=0
    for pid in $(find "$(rd "$S/$h/cgroup")" -name cgroup.procs -exec cat {} + 2>/dev/null); do
      pss=$((pss + $(awk '/^Pss:/{print $2}' "/proc/$pid/smaps_rollup" 2>/dev/null || echo 0))); n=$((n + 1)); done
    echo "$h ip=$(rd "$S/$h/ip") pid1=$(rd "$S/$h/pid") processes=$n pss_kib=$pss disk_used_kib=$(du -k "$S/$h/disk.img" | cut -f1)"; done
}

cmd=${1:-help}; shift || true
case $cmd in
  check) check; echo "testhost: ok" ;;
  image) check; image ;;
  add|rm) mkdir -p "$(dirname "$S")"; exec 8>"$(dirname "$S")/.$NAME.lock"; flock 8; case $cmd in add) add ;; rm) rm_host "$@" ;; esac; exec 8>&- ;;
  up) mkdir -p "$(dirname "$S")"; exec 8>"$(dirname "$S")/.$NAME.lock"; flock 8; rc=0; up "$@"; exec 8>&- ;;
  down) down; rm -f "$(dirname "$S")/.$NAME.lock"; rmdir "$(dirname "$S")" 2>/dev/null || true ;;
  run) [ "${1:-}" = -- ] && shift; ctl "$@" ;;
  in) h=$1; shift; [ "${1:-}" = -- ] && shift; inhost "$h" "$@" ;;
  net) net "$@" ;; disk) disk "$@" ;; power) power "$@" ;; wait) wait_host "$@" ;; stat) stat_ ;;
  _init) _init "$@" ;; _sup) _sup "$@" ;; _ctl) _ctl ;; _watch) _watch "$@" ;;
  *) sed -n '2,29p' "$SELF"; [ "$cmd" = help ] ;;
esac
