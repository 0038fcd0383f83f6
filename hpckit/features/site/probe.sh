#!/bin/sh
# What only a node knows, as lines of KEY=VALUE; `hpckit init --probe` runs it as a small job.
# It changes nothing there. $1: the Python that launches, $2: the folder that this was submitted from.
PATH=$PATH:/usr/sbin:/sbin
say() { printf '%s=%s\n' "$1" "$2"; }
bounded() { if command -v timeout >/dev/null 2>&1; then timeout 10 "$@"; else "$@"; fi 2>/dev/null; }

say node "$(uname -n)"
say arch "$(uname -m)"
say kernel "$(uname -r)"
say memory_kb "$(sed -n 's/^MemTotal: *\([0-9]*\).*/\1/p' /proc/meminfo)"
say memlock_kb "$(ulimit -l)"
say open_files "$(ulimit -n)"
say tmpdir "${TMPDIR:-}"
say slurm_tmpdir "${SLURM_TMPDIR:-}"
grep -q ' /tmp ' /proc/self/mounts && say own_tmp "$(awk '$2 == "/tmp" {print $3; exit}' /proc/self/mounts)"
for dir in "${SLURM_TMPDIR:-}" "${TMPDIR:-}" "${LOCAL_SCRATCH:-}" /tmp /local /localscratch /local_scratch \
    /scratch/local /mnt/local /nvme /dev/shm; do
    if [ -n "$dir" ] && [ -d "$dir" ] && [ -w "$dir" ]; then
        say scratch "$dir $(bounded df -PT "$dir" | awk 'NR == 2 {print $2, $3, $5}')"
    fi
done
for program in apptainer singularity enroot podman ch-run docker sarus; do
    if command -v "$program" >/dev/null 2>&1; then
        say runtime "$program $(bounded "$program" --version | head -n 1)"
    fi
done
if bounded unshare -Ur true; then say user_namespaces yes; else say user_namespaces no; fi
if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then say fuse yes; else say fuse no; fi
command -v fusermount3 >/dev/null 2>&1 && say fusermount3 yes
command -v squashfuse_ll >/dev/null 2>&1 && say squashfuse yes
bounded nvidia-smi --query-gpu=name,memory.total,driver_version,mig.mode.current --format=csv,noheader |
    while IFS= read -r line; do say gpu "$line"; done
[ -e /dev/kfd ] && say gpu "AMD: $(bounded rocm-smi --showproductname --csv | sed -n 2p)"
for device in /sys/class/infiniband/*; do
    if [ -e "$device" ]; then
        port=$(echo "$device"/ports/*)
        port=${port%% *}
        say fabric "${device##*/} $(cat "$port/link_layer" 2>/dev/null) $(cat "$port/rate" 2>/dev/null)"
    fi
done
for device in /sys/class/cxi/*; do if [ -e "$device" ]; then say fabric "${device##*/} Slingshot"; fi; done
for device in /sys/class/net/*; do
    if [ -e "$device/device" ]; then say network "${device##*/} $(cat "$device/speed" 2>/dev/null)"; fi
done
for python in "$1" python3; do
    if version=$(bounded "$python" --version); then say python "$python ${version#Python }"; fi
done
if [ -r "$2" ]; then say folder "$(bounded df -PT "$2" | awk 'NR == 2 {print $2}')"; fi
if getent hosts "$(uname -n)" >/dev/null 2>&1; then say own_name yes; else say own_name no; fi
say clock "$(date +%s)"
say end yes
