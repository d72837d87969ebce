# SPDX-License-Identifier: Apache-2.0
"""Writes golden.hpp: losses, logits and gradients of two small models by Hugging Face's BERT in fp64,
with weights by the formula of bert::fill_by_formula and one batch of unequal lengths.

    python3 make_golden.py > golden.hpp && clang-format-19 -i golden.hpp

Made once with torch 2.15.0 and transformers 5.24.0; needed again only if the case changes.
"""

import torch
from transformers import BertConfig, BertForPreTraining

LENGTHS = [9, 1, 17, 24]
COMMON = dict(vocab_size=101, num_hidden_layers=2, max_position_embeddings=24)
CONFIGS = {
    "heads_of_16": BertConfig(**COMMON, hidden_size=48, num_attention_heads=3, intermediate_size=80),
    "heads_of_64": BertConfig(**COMMON, hidden_size=128, num_attention_heads=2, intermediate_size=160),
}


def names(config):
    """Our order of the parameters."""
    yield from (f"bert.embeddings.{x}_embeddings.weight" for x in ("word", "position", "token_type"))
    yield from (f"bert.embeddings.LayerNorm.{x}" for x in ("weight", "bias"))
    for i in range(config.num_hidden_layers):
        layer = f"bert.encoder.layer.{i}."
        for kind in ("weight", "bias"):
            yield from (f"{layer}attention.self.{x}.{kind}" for x in ("query", "key", "value"))
        for part in ("attention.output.dense", "attention.output.LayerNorm", "intermediate.dense",
                     "output.dense", "output.LayerNorm"):
            yield from (f"{layer}{part}.{kind}" for kind in ("weight", "bias"))
    for part in ("dense", "LayerNorm"):
        yield from (f"cls.predictions.transform.{part}.{kind}" for kind in ("weight", "bias"))
    yield "cls.predictions.bias"
    for part in ("bert.pooler.dense", "cls.seq_relationship"):
        yield from (f"{part}.{kind}" for kind in ("weight", "bias"))


def formula(index, name, shape):
    count = shape.numel()
    bits = (torch.arange(count) * 2654435761 + (index + 1) * 40503 * 65536) % 2**32
    centre = 1.0 if name.endswith("LayerNorm.weight") else 0.0
    values = centre + (0.1 if len(shape) == 1 else 0.2) * (bits.double() / 2**32 - 0.5)
    return values.float().double().reshape(shape)


def numbers(values, form="{:.17g}"):
    return "{" + ", ".join(form.format(v) for v in values) + "}"


def print_case(name, config, batch):
    ids, types, inside, predicted, labels, next_labels = batch
    model = BertForPreTraining(config).double().eval()
    parameters = dict(model.named_parameters())
    order = list(names(config))
    assert sorted(order) == sorted(parameters), set(order) ^ set(parameters)
    with torch.no_grad():
        for index, parameter in enumerate(order):
            parameters[parameter].copy_(formula(index, parameter, parameters[parameter].shape))
    out = model(input_ids=ids, token_type_ids=types, attention_mask=inside.long())
    logits = out.prediction_logits[inside][predicted]
    cross_entropy = torch.nn.functional.cross_entropy
    masked_lm = cross_entropy(logits, labels, reduction="sum")
    next_sentence = cross_entropy(out.seq_relationship_logits, next_labels, reduction="sum")
    (masked_lm / 8 + next_sentence / 4).backward()

    print(f"inline result const {name}{{")
    print(f".hidden_size = {config.hidden_size}, .heads = {config.num_attention_heads},")
    print(f".intermediate_size = {config.intermediate_size},")
    print(f".masked_lm = {masked_lm.item():.17g}, .next_sentence = {next_sentence.item():.17g},")
    print(f".logits = {numbers(logits[:, :3].flatten().tolist())},")
    print(f".next_logits = {numbers(out.seq_relationship_logits.flatten().tolist())},")
    print(".gradients = {")
    for parameter in order:
        g = parameters[parameter].grad
        flat = g.flatten()
        print(f'{{"{parameter}", {numbers([g.norm().item(), flat[0].item(), flat[-1].item()])[1:-1]}}},')
    print("}};\n")


def main():
    row = torch.arange(sum(LENGTHS))
    tokens = (row * 37 + 5) % 101  # holds token 0, which the input look-up must not train
    segments = (row // 5) % 2
    predicted = row[(row * 7 + 3) % 5 == 0]
    labels = (predicted * 11 + 2) % 101
    next_labels = torch.tensor([0, 1, 1, 0])
    assert 0 in tokens

    width = max(LENGTHS)
    inside = torch.arange(width)[None, :] < torch.tensor(LENGTHS)[:, None]
    ids = torch.zeros(inside.shape, dtype=torch.long).masked_scatter(inside, tokens)
    types = torch.zeros(inside.shape, dtype=torch.long).masked_scatter(inside, segments)

    def integers(name, values):
        print(f"inline std::vector<std::int32_t> const {name}{numbers(values.tolist(), form='{}')};")

    print("// SPDX-License-Identifier: Apache-2.0")
    print("// Written by make_golden.py, which says what this is.")
    print("#pragma once\n\n#include <cstddef>  // for size_t\n#include <cstdint>  // for int32_t")
    print("#include <vector>   // for vector\n")
    print("namespace bert::test::golden {\n")
    integers("lengths", torch.tensor(LENGTHS))
    integers("tokens", tokens)
    integers("segments", segments)
    integers("predicted", predicted)
    integers("labels", labels)
    integers("next", next_labels)
    print("\nstruct gradient {\n  char const* name;\n  double norm;\n  double first;\n  double last;\n};")
    print("\nstruct result {\n  std::size_t hidden_size;\n  std::size_t heads;")
    print("  std::size_t intermediate_size;\n  double masked_lm;\n  double next_sentence;")
    print("  std::vector<double> logits;       // (P, 3): the first three logits of each prediction")
    print("  std::vector<double> next_logits;  // (B, 2)")
    print("  std::vector<gradient> gradients;  // of masked_lm / 8 + next_sentence / 4\n};\n")
    for name, config in CONFIGS.items():
        print_case(name, config, (ids, types, inside, predicted, labels, next_labels))
    print("}  // namespace bert::test::golden")


if __name__ == "__main__":
    main()
