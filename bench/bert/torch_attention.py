# SPDX-License-Identifier: Apache-2.0
"""The peer of attention_bench: PyTorch's scaled_dot_product_attention, forward and backward.

    torch_attention.py [--tokens N] [--heads N] [--lengths FILE] [--device cpu]

Same workloads (128, 512, 2048; "mix" and "even" from a file of lines "length,count"), same count of
FLOPs: 4 * 64 n^2 a head in forward, 10 * 64 n^2 in backward, n being real lengths. "mix" is run both
padded to the longest with a mask, and as a nested tensor without padding where this PyTorch can.
Backends are tried one by one; those that refuse say so. Needs torch, and a GPU for figures that mean
something: --device cpu is for trying the script.
"""

import argparse
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEAD_SIZE = 64
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}


def mixed_lengths(tokens, path):
    """Quantiles of the distribution in the file, for about `tokens` rows; as attention_bench does."""
    counts = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            fields = line.split(",")
            if len(fields) == 2 and fields[0].strip().isdigit():
                counts[int(fields[0])] = counts.get(int(fields[0]), 0) + float(fields[1])
    total = sum(counts.values())
    sequences = max(1.0, tokens * total / sum(n * count for n, count in counts.items()))
    result, below = [], 0.0
    for length in sorted(counts):
        below += counts[length]
        while (len(result) + 0.5) / sequences * total < below:
            result.append(length)
    return result


def seconds(work, device, repeat):
    """Median of `repeat` runs after three that do not count."""
    times = []
    for _ in range(repeat + 3):
        if device == "cuda":
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            work()
            stop.record()
            stop.synchronize()
            times.append(start.elapsed_time(stop) * 1e-3)
        else:
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
    return sorted(times[3:])[repeat // 2]


def padded(lengths, heads, device):
    """q, k, v (B, H, longest, 64) and a mask (B, 1, 1, longest), or none where all are equal."""
    longest = max(lengths)
    shape = (len(lengths), heads, longest, HEAD_SIZE)
    qkv = [torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True) for _ in "qkv"]
    if min(lengths) == longest:
        return qkv, None
    valid = torch.arange(longest)[None, :] < torch.tensor(lengths)[:, None]
    return qkv, valid[:, None, None, :].to(device)


def nested(lengths, heads, device):
    """q, k, v as nested tensors (B, H, length of each, 64)."""
    parts = []
    for _ in "qkv":
        rows = [torch.randn(n, heads, HEAD_SIZE, device=device, dtype=torch.bfloat16) for n in lengths]
        part = torch.nested.nested_tensor(rows, layout=torch.jagged, requires_grad=True)
        parts.append(part.transpose(1, 2))
    return parts, None


def report(name, lengths, args, inputs):
    heads = args.heads
    (q, k, v), mask = inputs(lengths, heads, args.device)
    flops = 4 * HEAD_SIZE * heads * sum(n * n for n in lengths)
    backends = BACKENDS if args.device == "cuda" else BACKENDS | {"math": SDPBackend.MATH}
    for backend, kind in backends.items():
        for dropout in (0.0, 0.1):
            label = f"{backend}/{name}" + ("/dropout" if dropout else "")

            def forward():
                return torch.nn.functional.scaled_dot_product_attention(
                    q, k, v, attn_mask=mask, dropout_p=dropout)

            try:
                with sdpa_kernel(kind):
                    out = forward()
                    gradient = torch.randn_like(out)

                    def backward():
                        torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True)

                    there, back = (seconds(work, args.device, args.repeat) for work in (forward, backward))
            except (RuntimeError, NotImplementedError) as refusal:
                print(f"{label:32} refused: {str(refusal).splitlines()[0]}")
                continue
            print(f"{label:32} forward {there * 1e6:9.1f} us {flops / there * 1e-12:7.1f} TFLOP/s   "
                  f"backward {back * 1e6:9.1f} us {2.5 * flops / back * 1e-12:7.1f} TFLOP/s")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--lengths")
    parser.add_argument("--repeat", type=int, default=20)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        parser.error("no GPU")
    print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name() if args.device == 'cuda' else 'CPU'}")
    torch.manual_seed(0)
    for length in (128, 512, 2048):
        count = (args.tokens + length - 1) // length
        report(str(length), [length] * count, args, padded)
    if args.lengths:
        mix = mixed_lengths(args.tokens, args.lengths)
        report("mix padded", mix, args, padded)
        report("mix nested", mix, args, nested)
        rows = sum(mix)
        length = max(1, sum(n * n for n in mix) // rows)
        report("even", [length] * ((rows + length - 1) // length), args, padded)


if __name__ == "__main__":
    main()
