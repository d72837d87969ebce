# SPDX-License-Identifier: Apache-2.0
"""Compares our BERT with Hugging Face's: logits, losses and every gradient of one batch.

    python3 parity.py build/.../bert_parity [--preset mini|base|small|tiny] [--precision fp32|bf16]
    python3 parity.py build/.../bert_parity_cuda ... [--precision fp32|bf16|fp16]

Makes random weights and a batch of unequal lengths, saves them as safetensors, runs both without
dropout, PyTorch in fp32 on the CPU, and prints a table of relative errors (norm of the difference
over norm). Fails if one exceeds 1e-4; in bf16 (fp16), if one exceeds 2^-7 (2^-10) plus 1.5 times that of
PyTorch's own autocast to this type against its fp32. A program that another one must start: --launcher 'command'.
Needs torch, transformers and safetensors; says so and exits with 77 otherwise.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
import tempfile

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers import BertConfig, BertForPreTraining
except ImportError as missing:
    print(f"parity: skipped, {missing}")
    sys.exit(77)

FP32_BOUND = 1e-4
LOSS_SCALE = 2.0**10  # fp16 needs one; for others it changes nothing
AUTOCAST = {"bf16": (torch.bfloat16, 2**-7), "fp16": (torch.float16, 2**-10)}
LENGTHS = [37, 128, 1, 64, 90, 15]
PRESETS = {
    "tiny": dict(vocab_size=131, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                 intermediate_size=96, max_position_embeddings=128),
    "small": dict(vocab_size=499, hidden_size=128, num_hidden_layers=2, num_attention_heads=2,
                  intermediate_size=512, max_position_embeddings=128),
    "mini": dict(vocab_size=8192, hidden_size=256, num_hidden_layers=4, num_attention_heads=4,
                 intermediate_size=1024, max_position_embeddings=128),
    "base": dict(),
}


def make_batch(config, generator):
    """A padded batch for them, and the same tokens back to back for us."""
    def draw(high, size):
        return torch.randint(0, high, size, generator=generator)

    shape = (len(LENGTHS), max(LENGTHS))
    inside = torch.arange(shape[1])[None, :] < torch.tensor(LENGTHS)[:, None]
    ids = torch.where(inside, 1 + draw(config.vocab_size - 1, shape), 0)
    segments = torch.where(inside, draw(2, shape), 0)
    masked = inside & (torch.rand(shape, generator=generator) < 0.15)
    labels = draw(config.vocab_size, shape)
    next_labels = draw(2, (len(LENGTHS),))
    packed = {
        "tokens": ids[inside],
        "segments": segments[inside],
        "starts": torch.tensor([0] + LENGTHS).cumsum(0),
        "predicted": masked[inside].nonzero()[:, 0],
        "labels": labels[masked],
        "next": next_labels,
    }
    return ids, segments, inside, masked, labels, next_labels, packed


def peer(model, ids, segments, inside, masked, labels, next_labels, precision="fp32"):
    model.zero_grad()
    with torch.autocast("cpu", AUTOCAST.get(precision, (None,))[0], enabled=precision in AUTOCAST):
        out = model(input_ids=ids, token_type_ids=segments, attention_mask=inside.long())
    logits = out.prediction_logits[masked].float()
    next_logits = out.seq_relationship_logits.float()
    cross_entropy = torch.nn.functional.cross_entropy
    masked_lm = cross_entropy(logits, labels[masked], reduction="sum")
    next_sentence = cross_entropy(next_logits, next_labels, reduction="sum")
    (LOSS_SCALE * (masked_lm / len(logits) + next_sentence / len(next_labels))).backward()
    result = {"logits": logits, "next_logits": next_logits,
              "losses": torch.stack([masked_lm, next_sentence])}
    for name, parameter in model.named_parameters():
        result[name] = parameter.grad.float() / LOSS_SCALE
    return {name: value.detach() for name, value in result.items()}


def errors_of(results, exact):
    """Relative errors by name, and the norms that they are relative to."""
    overall = max(float(value.norm()) for name, value in exact.items() if "." in name)
    errors = {}
    for name, expected in exact.items():
        if name not in results:
            sys.exit(f"parity: we computed no {name}")
        if results[name].shape != expected.shape:
            sys.exit(f"parity: {name} is {results[name].shape} here, {expected.shape} there")
        # The key's bias cancels in the softmax: its gradient is rounding alone.
        norm = overall if name.endswith("key.bias") else float(expected.norm())
        errors[name] = float((results[name] - expected).norm()) / norm, norm
    return errors


def compare(ours, theirs, autocast, precision):
    errors = errors_of(ours, theirs)
    yardstick = errors_of(autocast, theirs) if autocast else None
    failed = 0
    print(f"{'':60} {'norm':>10} {'error':>9}{' autocast' if autocast else ''}")
    for name, (error, norm) in errors.items():
        bound = 1.5 * yardstick[name][0] + AUTOCAST[precision][1] if autocast else FP32_BOUND
        failed += not error <= bound  # NaN fails
        print(f"{name:60} {norm:10.3g} {error:9.1e}"
              + (f" {yardstick[name][0]:8.1e}" if autocast else "")
              + (" of the largest gradient" if name.endswith("key.bias") else "")
              + ("" if error <= bound else "  FAILED"))

    def worst(table):
        return (f"losses {table['losses'][0]:.1e}, logits {table['logits'][0]:.1e}, worst "
                f"{max(error for error, _ in table.values()):.1e}")

    print(f"relative errors: {worst(errors)}")
    if autocast:
        print(f"PyTorch's own in autocast: {worst(yardstick)}")
    print("ok" if failed == 0 else f"{failed} FAILED")
    return failed == 0


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--preset", choices=PRESETS, default="mini")
    parser.add_argument("--precision", choices=["fp32", *AUTOCAST], default="fp32")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path, help="a folder for the files")
    parser.add_argument("--launcher", type=shlex.split, default=[])
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = BertConfig(**PRESETS[args.preset])
    model = BertForPreTraining(config).eval()
    with torch.no_grad():  # biases and LayerNorm too, so that each of them shows
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    *batch, packed = make_batch(config, torch.Generator().manual_seed(args.seed))
    theirs = peer(model, *batch)
    autocast = peer(model, *batch, args.precision) if args.precision != "fp32" else None

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        packed = {name: value.to(torch.int32).contiguous() for name, value in packed.items()}
        save_file(packed, folder / "batch.safetensors")
        subprocess.run([*args.launcher, args.program, folder, args.precision], check=True)
        ours = load_file(folder / "result.safetensors")
    sys.exit(0 if compare(ours, theirs, autocast, args.precision) else 1)


if __name__ == "__main__":
    main()
