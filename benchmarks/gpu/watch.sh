#!/usr/bin/env bash
# Gate, bisect and nightly once for real: a repository of four commits, the third of which makes a
# Triton GEMM slower (one pipeline stage instead of three).
#
#     benchmarks/gpu/watch.sh [DEVICE [STEPS]] > benchmarks/results/gpu_watch.txt
#
# STEPS: those of "gate nightly bisect" to run, by default all.
# Expected: gate 0 for the second commit and 1 for the third, bisect names the third, nightly ends
# with 0 four times on the second and with 1 on the fourth.
set -u
device=${1:-cuda:0}
steps=" ${2:-gate nightly bisect} "
example=$(realpath "$(dirname "$0")/../../examples/gemm_triton.py")
kmark="${KMARK:-python3 -m kernelmark}"
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
export KERNELMARK_CACHE=$folder/cache GIT_AUTHOR_NAME=w GIT_AUTHOR_EMAIL=w GIT_COMMITTER_NAME=w \
    GIT_COMMITTER_EMAIL=w COLUMNS=120

commit() { git -C repo add -A && git -C repo commit -q -m "$1" && git -C repo tag "$2"; }
show() {
    printf '\n$ kmark %s\n' "$*"
    local begun=$SECONDS
    $kmark "$@" 2>&1
    echo "exit code $? after $((SECONDS - begun)) s"
}
asked() { [[ $steps == *" $1 "* ]]; }
night() { git -C repo checkout -q "$1" && show nightly nightly.toml; }

git init -q repo
cp "$example" repo/gemm.py && commit "Add a GEMM" one
echo "# a comment" >> repo/gemm.py && commit "Comment on it" two
sed -i 's/"num_stages": 3}/"num_stages": 1}/' repo/gemm.py && commit "Use one stage" three
echo "# another comment" >> repo/gemm.py && commit "Comment again" four
cat > suite.toml <<'S'
[[problems]]
op = "gemm"
m = 1024
n = 4096
k = 4096
tb = "t"
dtype = "bf16"
S
cat > nightly.toml <<N
name = "gemm"
store = "night.sqlite"
[[run]]
suites = ["suite.toml"]
backends = ["repo/gemm.py"]
devices = ["$device"]
timing = "quick"
[canaries]
suite = ""
roofs = false
[base]
repo = "repo"
N

select="-o gemm -a m=1024 -a n=4096 -a k=4096 -a tb=t --dtype bf16 -d $device -b gemm.py --rounds 6 --alpha 0.05"
if asked gate; then
    show gate --repo repo --base one --head two $select --budget 60
    show gate --repo repo --base two --head three $select --budget 60
fi
if asked nightly; then
    for _ in 1 2 3 4; do night two; done
    night four
fi
if asked bisect; then
    show bisect --repo repo --good one --bad four $select --budget 150
fi
