# SPDX-License-Identifier: Apache-2.0
"""The peer of bert_step and bert_cpu_step: forward, backward and fused AdamW of Hugging Face's BERT in
PyTorch, with its scaled_dot_product_attention.

    torch_bert.py --device cuda --model base --precision bf16 --workload full padded --sequences 32
    torch_bert.py --device cpu --threads 1 --model mini --precision fp32 --workload full

Workloads, lengths, dropout and the share of masked tokens are those of our programs; "padded" is how
transformers computes natural lengths. tokens/s are of text: padding does not count. bf16 is autocast
over fp32 parameters. Only masked rows go through the masked-LM head, as in our model; --full-head is
transformers' own way, which computes logits for every token. Medians of the steps. Needs torch and
transformers.
"""

import argparse
import statistics
import time

import torch
from transformers import BertConfig, BertForPreTraining

PRESETS = {
    "tiny": dict(vocab_size=211, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
                 intermediate_size=128, max_position_embeddings=40),
    "mini": dict(vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                 intermediate_size=1024, max_position_embeddings=128),
    "base": dict(),
    "large": dict(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16,
                  intermediate_size=4096),
}


def histogram(path):
    """{length: sequences} of a file of lines "length,count", or Wikipedia's by our formula."""
    if path is None:
        strata = ((5, 128, 37_300_000), (129, 256, 19_700_000), (257, 384, 11_700_000),
                  (385, 511, 8_000_000), (512, 512, 23_400_000))
        return {n: count // (last - first + 1) for first, last, count in strata
                for n in range(first, last + 1)}
    with open(path, encoding="utf-8") as lines:
        fields = [line.split(",") for line in lines if line[:1].isdigit()]
    return {int(length): int(count) for length, count in fields}


def quantiles(counts, sequences, longest):
    """The lengths in the middles of equal shares of the distribution, as our programs take them."""
    total, result, below = sum(counts.values()), [], 0.0
    for length in sorted(counts):
        below += counts[length] / total
        while len(result) < sequences and len(result) + 0.5 <= below * sequences:
            result.append(min(length, longest))
    return result + [longest] * (sequences - len(result))


def measure(args, workload, sequences):
    torch.manual_seed(0)
    config = BertConfig(**PRESETS[args.model], attn_implementation="sdpa")
    model = BertForPreTraining(config).to(args.device).train()
    longest = min(args.longest or config.max_position_embeddings, config.max_position_embeddings)
    lengths = [longest] * sequences
    if workload == "padded":
        lengths = quantiles(histogram(args.lengths), sequences, longest)
    ids = torch.randint(1, config.vocab_size, (sequences, max(lengths)))
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    masked = (torch.rand(ids.shape) < 0.15) & mask
    rows = masked.flatten().nonzero()[:, 0].to(args.device)
    labels = ids[masked].to(args.device)
    full_labels = torch.where(masked, ids, -100).to(args.device)
    attention_mask = None if bool(mask.all()) else mask.long().to(args.device)
    ids = ids.to(args.device)
    next_labels = torch.zeros(sequences, dtype=torch.long, device=args.device)
    update = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    loss_of = torch.nn.functional.cross_entropy

    def loss_by_masked_rows(ids, attention_mask):
        hidden, pooled = model.bert(ids, attention_mask)[:2]
        logits = model.cls.predictions(hidden.flatten(0, 1)[rows])
        next_logits = model.cls.seq_relationship(pooled)
        return loss_of(logits.float(), labels) + loss_of(next_logits.float(), next_labels)

    def loss_by_all_rows(ids, attention_mask):
        return model(ids, attention_mask, labels=full_labels, next_sentence_label=next_labels).loss

    loss = loss_by_all_rows if args.full_head else loss_by_masked_rows
    if args.compile:
        loss = torch.compile(loss)

    def step():
        update.zero_grad()
        with torch.autocast(args.device, torch.bfloat16, enabled=args.precision == "bf16"):
            value = loss(ids, attention_mask)
        value.backward()
        update.step()

    clock, processor = [], []
    for _ in range(args.warm_up + args.steps):
        before = time.perf_counter(), time.process_time()
        step()
        if args.device == "cuda":
            torch.cuda.synchronize()
        clock.append(time.perf_counter() - before[0])
        processor.append(time.process_time() - before[1])
    seconds = statistics.median(clock[args.warm_up:])
    tokens = sum(lengths)
    print(f"| {args.model} | {args.precision} | {workload} | {sequences} | {tokens} | {1e3 * seconds:.3f} |"
          f" {tokens / seconds:.0f} | {tokens / statistics.median(processor[args.warm_up:]):.0f} |",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    parser.add_argument("--model", choices=PRESETS, default="base")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--workload", choices=["full", "padded"], nargs="+", default=["full", "padded"])
    parser.add_argument("--sequences", type=int, nargs="+", default=[32])
    parser.add_argument("--longest", type=int, help="no sequence is longer")
    parser.add_argument("--lengths", help='file of lines "length,count"; default: a formula')
    parser.add_argument("--threads", type=int, default=1, help="of the CPU")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--full-head", action="store_true")
    parser.add_argument("--compile", action="store_true", help="by torch.compile")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU: --device cpu")
    torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {args.threads} thread(s)"
    print(f"{where}; PyTorch {torch.__version__}\n")
    print("| model | precision | workload | sequences | tokens | ms | tokens/s | tokens/s of processor |\n"
          "|---|---|---|---|---|---|---|---|")
    for workload in args.workload:
        for sequences in args.sequences:
            measure(args, workload, sequences)


if __name__ == "__main__":
    main()
