# SPDX-License-Identifier: Apache-2.0
"""Compares our BERT with Hugging Face's: logits, losses and every gradient of one batch.

    python3 parity.py build/.../bert_parity [--preset mini|base|tiny] [--seed N] [--keep FOLDER]

Makes random weights and a batch of unequal lengths, saves them as safetensors, runs both in fp32
without dropout and prints a table of relative errors (norm of the difference over norm). Fails if
one exceeds 1e-4. Needs torch, transformers and safetensors; says so and exits with 77 otherwise.
"""

import argparse
import pathlib
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

BOUND = 1e-4
LENGTHS = [37, 128, 1, 64, 90, 15]
PRESETS = {
    "tiny": dict(vocab_size=131, hidden_size=48, num_hidden_layers=2, num_attention_heads=3,
                 intermediate_size=96, max_position_embeddings=128),
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


def peer(model, ids, segments, inside, masked, labels, next_labels):
    out = model(input_ids=ids, token_type_ids=segments, attention_mask=inside.long())
    logits = out.prediction_logits[masked]
    cross_entropy = torch.nn.functional.cross_entropy
    masked_lm = cross_entropy(logits, labels[masked], reduction="sum")
    next_sentence = cross_entropy(out.seq_relationship_logits, next_labels, reduction="sum")
    (masked_lm / len(logits) + next_sentence / len(next_labels)).backward()
    result = {"logits": logits, "next_logits": out.seq_relationship_logits,
              "losses": torch.stack([masked_lm, next_sentence])}
    for name, parameter in model.named_parameters():
        result[name] = parameter.grad
    return {name: value.detach() for name, value in result.items()}


def compare(ours, theirs):
    worst = 0.0
    overall = max(float(value.norm()) for value in theirs.values())
    print(f"{'':60} {'norm':>10} {'error':>9}")
    for name, expected in theirs.items():
        if name not in ours:
            sys.exit(f"parity: we computed no {name}")
        if ours[name].shape != expected.shape:
            sys.exit(f"parity: {name} is {ours[name].shape} here, {expected.shape} there")
        norm = float(expected.norm())
        # The key's bias cancels in the softmax: its gradient is rounding alone.
        zero = name.endswith("key.bias")
        error = float((ours[name] - expected).norm()) / (overall if zero else norm)
        worst = max(worst, error)
        print(f"{name:60} {norm:10.3g} {error:9.1e}{' of the largest norm' if zero else ''}")
    print(f"worst relative error {worst:.1e}, bound {BOUND:.0e}:", "ok" if worst <= BOUND else "FAILED")
    return worst <= BOUND


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--preset", choices=PRESETS, default="mini")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=pathlib.Path)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    config = BertConfig(**PRESETS[args.preset])
    model = BertForPreTraining(config).eval()
    with torch.no_grad():  # biases and LayerNorm too, so that each of them shows
        for parameter in model.parameters():
            parameter += 0.02 * torch.randn_like(parameter)
    *batch, packed = make_batch(config, torch.Generator().manual_seed(args.seed))
    theirs = peer(model, *batch)

    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(exist_ok=True)
        config.save_pretrained(folder)
        weights = {name: p.detach().contiguous() for name, p in model.named_parameters()}
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        packed = {name: value.to(torch.int32).contiguous() for name, value in packed.items()}
        save_file(packed, folder / "batch.safetensors")
        subprocess.run([args.program, folder], check=True)
        ours = load_file(folder / "result.safetensors")
    sys.exit(0 if compare(ours, theirs) else 1)


if __name__ == "__main__":
    main()
