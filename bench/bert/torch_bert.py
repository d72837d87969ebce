# SPDX-License-Identifier: Apache-2.0
"""The peer of model_bench.cpp: forward, backward and fused AdamW of Hugging Face's BERT in PyTorch.

    torch_bert.py base fp32 --length 128 --sequences 8 --threads 1 [--full-head]
    torch_bert.py base fp32 --natural

--natural: the eight lengths of model_bench.cpp, padded to the longest as transformers does it.

Prints tokens per second of the best of --steps steps, by the clock and by the processor's time.
Only masked rows go through the masked-LM head, as in our model; --full-head is transformers'
own way, which computes logits for every token. Needs torch and transformers.
"""

import argparse
import time

import torch
from transformers import BertConfig, BertForPreTraining

NATURAL = [28, 66, 110, 165, 245, 362, 512, 512]
PRESETS = {
    "mini": dict(vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                 intermediate_size=1024, max_position_embeddings=128),
    "base": dict(),
    "large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                  intermediate_size=4096),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("precision", choices=["fp32", "bf16"])
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--full-head", action="store_true")
    parser.add_argument("--natural", action="store_true")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = BertConfig(**PRESETS[args.preset])
    model = BertForPreTraining(config).train()
    lengths = NATURAL if args.natural else [args.length] * args.sequences
    ids = torch.randint(1, config.vocab_size, (len(lengths), max(lengths)))
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    masked = (torch.rand(ids.shape) < 0.15) & mask
    attention_mask = mask.long() if args.natural else None  # without one, nothing is masked
    update = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    next_labels = torch.zeros(len(lengths), dtype=torch.long)
    loss_of = torch.nn.functional.cross_entropy

    def step():
        model.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=args.precision == "bf16"):
            if args.full_head:
                labels = torch.where(masked, ids, -100)
                loss = model(ids, attention_mask, labels=labels, next_sentence_label=next_labels).loss
            else:
                hidden, pooled = model.bert(ids, attention_mask)[:2]
                logits = model.cls.predictions(hidden[masked])
                loss = loss_of(logits.float(), ids[masked])
                loss = loss + loss_of(model.cls.seq_relationship(pooled).float(), next_labels)
        loss.backward()
        update.step()

    clock, processor = [], []
    for _ in range(args.steps + 1):  # the first warms up
        before = time.perf_counter(), time.process_time()
        step()
        clock.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
    tokens = sum(lengths)
    print(f"{args.preset} {args.precision} {len(lengths)} x {'natural' if args.natural else args.length}"
          f"{' full head' if args.full_head else ''}, {args.threads} threads:"
          f" {tokens / min(clock[1:]):.0f} tokens/s by the clock,"
          f" {tokens / min(processor[1:]):.0f} by processor time")


if __name__ == "__main__":
    main()
