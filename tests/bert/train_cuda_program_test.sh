#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# train_cuda_program_test.sh <mpiexec> <emulator> <bert_train_cuda> <bert_train>
#
# The training program for GPUs as a person runs it, on a small text and a tiny model, and the CPU's
# program going on where it stood, and the other way round.
set -euo pipefail
mpiexec="$1" emulator="$2" on_gpus="$3" on_cpus="$4"
folder="$(mktemp -d)"
trap 'rm -rf "${folder}"' EXIT
cd "${folder}"

fail() {
  echo "FAILED: $*"
  cat out
  exit 1
}

subjects=(cat dog bird fish horse farmer child queen)
verbs=(sees likes follows calls)
mkdir text
for document in $(seq 60); do
  for line in $(seq 12); do
    s=$(((document * 5 + line) % 8)) v=$(((document + line * 3) % 4)) o=$(((document * 3 + line * 5) % 8))
    echo "The ${subjects[s]} ${verbs[v]} the ${subjects[o]}. Then the ${subjects[o]} sleeps all day long."
  done >"text/${document}.txt"
done
cat >tiny.json <<'TEXT'
{"vocab_size": 128, "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1,
 "intermediate_size": 128, "max_position_embeddings": 64}
TEXT

train() {  # program with its emulator, arguments
  local -a program
  read -r -a program <<<"$1"
  shift
  OMP_NUM_THREADS=1 "${mpiexec}" -n 2 "${program[@]}" --text text --model tiny.json --vocabulary-size 120 \
    --max-length 48 --batch 8 --evaluation-samples 16 --report-every 1 --output run "$@" >out 2>&1
}
export PTXSIM_DEVICES=2
gpu="${emulator} ${on_gpus}"

echo "== on GPUs"
train "${gpu}" --steps 4 --checkpoint-every 2 --graphs || fail "the run"
grep -q "bf16; 4 steps of 8 sequences" out || fail "bf16 is not the default"
grep -q "^GPU memory: .* for batches of up to" out || fail "does not tell the memory"
grep -q "^step 4/4  loss" out || fail "no line of progress"
grep -q "^held-out text after step 4: masked-LM loss" out || fail "no evaluation"
[[ "$(grep -c '"kind":"step"' run/log.jsonl)" == 4 ]] || fail "the log has not 4 steps"
[[ -s run/curve.svg && -s run/vocab.txt ]] || fail "no curve or no vocabulary"

echo "== on from there on the CPU, and back"
train "${on_cpus}" --steps 6 --resume || fail "the CPU's run"
grep -q "^goes on from run/checkpoints/step-00000004" out || fail "the CPU did not go on"
train "${gpu}" --steps 8 --resume --precision fp32 || fail "the second run on GPUs"
grep -q "^goes on from run/checkpoints/step-00000006" out || fail "the GPUs did not go on"
[[ "$(grep -c '"kind":"step"' run/log.jsonl)" == 8 ]] || fail "the log has not 8 steps"
train "${gpu}" --steps 10 --resume --precision fp16 --graphs || fail "the run in fp16"
grep -q "fp16; 10 steps of 8 sequences" out || fail "is not in fp16"
grep -q '"good_steps"' run/checkpoints/step-00000010/trainer.json || fail "no loss scale is kept"

train "${gpu}" --steps 12 --resume --reduce sharded || fail "the sharded run"
grep -q "sharded: rank r keeps part r" out || fail "is not sharded"
train "${on_cpus}" --steps 13 --resume --reduce sharded || fail "the CPU's sharded run"
grep -q "^goes on from run/checkpoints/step-00000012" out || fail "the CPU did not go on from shards"
train "${gpu}" --steps 14 --resume --reduce adasum --graphs || fail "the run with Adasum"
grep -q '"orthogonality":[01]\.' run/log.jsonl || fail "no orthogonality in the log"

echo "== wrong input"
if PTXSIM_DEVICES=1 train "${gpu}" --steps 2; then fail "two ranks shared a GPU"; fi
grep -q "bert_train_cuda: .*2 ranks and only 1 GPU: start one rank a GPU" out || fail "does not say why"
if train "${gpu}" --steps 2 --reduce adasum-delta; then fail "adasum-delta on GPUs was accepted"; fi
grep -q "bert_train_cuda: .*average" out || fail "does not say which --reduce there is"
if train "${on_cpus}" --graphs; then fail "the CPU's program took --graphs"; fi
if train "${on_cpus}" --precision fp16; then fail "the CPU's program took fp16"; fi
echo "passed"
