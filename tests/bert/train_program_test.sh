#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# train_program_test.sh <mpiexec> <bert_train>
#
# The training program as a person runs it, on a small text and a tiny model: what it leaves behind,
# that a run which is killed goes on bit for bit, and what it says of wrong input.
set -euo pipefail
mpiexec="$1"
program="$2"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
cd "${folder}"

fail() {
  echo "FAILED: $*"
  exit 1
}

# A text with a rule: 120 documents of short sentences.
subjects=(cat dog bird fish horse farmer child queen)
verbs=(sees likes follows calls)
mkdir text
for document in $(seq 120); do
  for line in $(seq 12); do
    s=$(((document * 5 + line) % 8)) v=$(((document + line * 3) % 4)) o=$(((document * 3 + line * 5) % 8))
    echo "The ${subjects[s]} ${verbs[v]} the ${subjects[o]}. Then the ${subjects[o]} sleeps all day long."
  done >"text/${document}.txt"
done
cat >tiny.json <<'TEXT'
{"vocab_size": 128, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
 "intermediate_size": 64, "max_position_embeddings": 64}
TEXT

train() {  # output directory, more arguments
  local output="$1"
  shift
  OMP_NUM_THREADS=1 "${mpiexec}" -n 2 "${program}" --text "${text:-text}" --model tiny.json --vocabulary-size 120 \
    --max-length 48 --batch 16 --steps 60 --checkpoint-every 20 --evaluation-samples 64 \
    --output "${output}" "$@" 2>&1
}

echo "== a whole run"
train whole >whole.out || { cat whole.out; fail "the run"; }
grep -q "^step 60/60  loss" whole.out || { cat whole.out; fail "no line of progress"; }
grep -q "^held-out text after step 60: masked-LM loss" whole.out || fail "no evaluation"
grep -q "^unigram entropy of the text: " whole.out || fail "no unigram entropy"
[[ -s whole/curve.svg && -s whole/vocab.txt ]] || fail "no curve or no vocabulary"
[[ "$(grep -c '"kind":"step"' whole/log.jsonl)" == 60 ]] || fail "the log has not 60 steps"
ls whole/checkpoints
[[ "$(find whole/checkpoints -mindepth 1 -maxdepth 1 | wc -l)" == 2 ]] || fail "not two checkpoints kept"

echo "== a run that is killed goes on bit for bit"
train killed >killed.out &
runner=$!
for _ in $(seq 600); do
  [[ -e killed/checkpoints/step-00000020 ]] && break
  sleep 0.05
done
for process in $(pgrep -f "output killed"); do  # of this test, not of another one beside it
  [[ "$(readlink "/proc/${process}/cwd")" != "$(pwd -P)" ]] || kill -KILL "${process}" || true
done
wait "${runner}" || true
[[ -e killed/checkpoints/step-00000020 ]] || { cat killed.out; fail "no checkpoint"; }
train killed --resume >resumed.out || { cat resumed.out; fail "the resumed run"; }
grep -q "^goes on from killed/checkpoints/step-000000[246]0" resumed.out || fail "did not resume"
for file in model.safetensors optimizer.safetensors; do
  cmp "whole/checkpoints/step-00000060/${file}" "killed/checkpoints/step-00000060/${file}" ||
    fail "${file} differs after a resume"
done
[[ "$(grep -c '"kind":"step"' killed/log.jsonl)" == 60 ]] || fail "the resumed log has not 60 steps"

echo "== every way to join ranks, from every other's checkpoint"
for mode in average adasum adasum-delta sharded; do
  train "${mode}" --steps 6 --checkpoint-every 3 --reduce "${mode}" >mode.out || { cat mode.out; fail "${mode}"; }
  rm -r "${mode}/checkpoints/step-00000006"
  train "${mode}" --steps 6 --reduce "${mode}" --resume >mode.out || { cat mode.out; fail "${mode} resumed"; }
  grep -q "^goes on from ${mode}/checkpoints/step-00000003" mode.out || fail "${mode} did not resume"
  [[ "$(grep -c '"kind":"step"' "${mode}/log.jsonl")" == 6 ]] || fail "the log of ${mode} has not 6 steps"
done
for mode in adasum adasum-delta; do
  grep -q '"orthogonality":[01]\.' "${mode}/log.jsonl" || fail "no orthogonality in the log of ${mode}"
done
[[ -s adasum-delta/checkpoints/step-00000006/optimizer-rank-1.safetensors ]] || fail "no moments of rank 1"
for mode in average adasum sharded; do
  rm -r "adasum-delta/checkpoints/step-00000006"
  train adasum-delta --steps 6 --reduce "${mode}" --resume >mode.out || { cat mode.out; fail "delta as ${mode}"; }
  grep -q "those of rank 0 serve for all" mode.out || fail "${mode} does not say whose moments it takes"
done

echo "== wrong input"
refused() {  # message, output directory, arguments
  local message="$1"
  shift
  if train "$@" >refused.out; then fail "'$*' was accepted"; fi
  grep -q "bert_train: .*${message}" refused.out || { cat refused.out; fail "'$*' does not say: ${message}"; }
}
text=missing refused "no such file" new
refused "no model preset 'huge'" new --model huge
refused "cannot be dealt to 2 ranks" new --batch 1
refused "no checkpoint" new --resume
refused "positions" new --max-length 65
refused "choose --clip none, before or bucketwise" new --reduce adasum-delta --clip after
mkdir -p empty && : >empty/empty.txt
text=empty refused "no word" none
printf 'One short line.\n' >empty/short.txt
text=empty/short.txt refused "document" short
printf '[PAD]\n[UNK]\n' >bad_vocab.txt
refused "\[CLS\]" new --vocabulary bad_vocab.txt
model=killed/checkpoints/step-00000060/model.safetensors
truncate -s -100 "${model}"
refused "model.safetensors" killed --resume
truncate -s -40 killed/tokens.cache
refused "tokens.cache" killed
echo "passed"
