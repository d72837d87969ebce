# SPDX-License-Identifier: Apache-2.0
"""Writes wordpiece.json: what Hugging Face's BertTokenizer makes of awkward texts.

Needs transformers (5.24 wrote the file): python3 make_wordpiece.py
"""

import json
import pathlib
import tempfile

from transformers import BertTokenizer

PIECES = """[PAD] [unused0] [UNK] [CLS] [SEP] [MASK] the quick brown fox ##es jump ##ed ##s over un ##want
##ed_ run ##ning ##n ##i ##ing wa want ##ant ! " # $ % & ' ( ) * + , - . / : ; < = > ? @ [ \\ ] ^ _ ` { | } ~
a b c d e f g h i j k l m n o p q r s t u v w x y z 0 1 2 3 ##0 ##1 ##2 ##3 ##a ##b ##c ##d ##e ##f ##g
##h ##j ##k ##l ##m ##o ##p ##q ##r ##t ##u ##v ##w ##x ##y ##z A B The Ä ä É é ##é ß ##ß σ ς ##σ ##ς
中 国 ##国 人 日 本 。 、 “ ” — … € ø ##ø ł ##ł hello world ##ᄀ ᄀ ##ᅡ ##ᆨ 가 각 अ ##ा ##ि क ﬁ ##ﬁ ² ##² À
naive cafe resume istanbul mask""".split()

TEXTS = [
    "The quick brown foxes jumped over the unwanted running.",
    "",
    "   \t\n\r  ",
    "UNWANT\u00c9D,running",
    "Caf\u00e9 na\u00efve r\u00e9sum\u00e9 cafe\u0301",
    "\u4e2d\u56fd\u4eba\u65e5\u672c\u3002hello\u4e2dworld",
    "hello\u200bworld hel\u00adlo \ufeffhello\u0000world\ufffd \x07bell",
    "a\u00a0b\u2003c\u2028d\u3000e\u0085f",
    "a" * 100,
    "a" * 101,
    "\u00e9" * 100,
    "\u00e9" * 101,
    "x\u20acy\u2026z\u2014\u201cquoted\u201d",
    "\u0130stanbul ISTANBUL \u0131",
    "\u039f\u03a3\u03a3 \u03c3\u03c2 \u03a3",
    "\u00df STRASSE \u1e9e",
    "\uac00\uac01 \u1100\u1161",
    "\u0915\u093e\u0915\u093f \u0905\u0903",
    "\ufb01 x\u00b2 \u00b2",
    "don't $5.00 50% a+b=c <tag> ~`^_|\\",
    "\u037e \u1fef \u00b7 \u0387",
    "\u00d8re \u0141\u00f3d\u017a",
    "e\u0323\u0302 e\u0302\u0323 \u1ec7",
    "\U0001f600 smile \U0001f468\u200d\U0001f469 \U00020000 \U0002f800",
    "\uf900 \ufa0e",
    "##ed hello##s [ mask ] [PAD",
    "\u0300hello\u0301",
    "1234567 30\u00b0 \u2167 \u00bd",
]


def main():
    folder = pathlib.Path(__file__).parent
    with tempfile.TemporaryDirectory() as temporary:
        vocabulary = pathlib.Path(temporary) / "vocab.txt"
        vocabulary.write_text("\n".join(PIECES) + "\n", encoding="utf-8")
        cases = []
        tokenizers = {
            key: BertTokenizer(vocab=str(vocabulary), do_lower_case=lower)
            for key, lower in (("lower", True), ("keep", False))
        }
        for text in TEXTS:
            case = {"text": text}
            for key, tokenizer in tokenizers.items():
                case[key] = tokenizer.encode(text, add_special_tokens=False)
            cases.append(case)
    lines = ",\n".join("    " + json.dumps(case) for case in cases)
    pieces = json.dumps(PIECES)
    (folder / "wordpiece.json").write_text(
        f'{{\n  "pieces": {pieces},\n  "cases": [\n{lines}\n  ]\n}}\n'
    )


if __name__ == "__main__":
    main()
