"""Texts that tell tokenizers apart."""

HARD = (
    "A man rides a bike.",
    "a",
    "The QUICK brown Fox, jumped-over the lazy dog!",
    " a b",
    "",
    "Ein Mann fährt über die Straße.",
    " ",
    "  leading,   several and trailing   ",
    "\t\n\r a\tb\nc\r\nd",
    "don't I'll we've they're he'd I'm 'S ''s x's's",
    "...!!!??? --- $5.00 #tag @me a_b \\ /",
    "1234567 12,345.67 ½ Ⅷ ١٢٣ 1a2b",
    "ÀÉÎÕÜ Straße İstanbul ẞ ǅ ﬁ Σίσυφος ΟΔΟΣ ЁЖ",
    "e\u0301 a\u0308 n\u0303 a\u0300\u0316\u0301b \u0301x",
    "日本語のテスト。中文，𠀀",
    "한국어 테스트 각",
    "😀👩\u200d👩\u200d👧\u200d👦🏽🇩🇪 ok ☺\ufe0f",
    "مرحبا بالعالم ﷺ",
    "שָׁלוֹם עולם",
    "हिन्दी ภาษาไทย",
    "a\u200eb\u200f c\u202ed",
    "a\x01b\x7fc\x0be\x0cf\x1cg",
    "c\x85d",
    "a\x00b",
    "\u00a0\u2003\u3000x\u2028y\u2029z\u200bw\ufeffv\u00ad",
    "<s> </s> <unk> <pad> <mask> [CLS] ##a ▁a <0x41>",
    "<|endoftext|>a b<|endoftext|><|endoftext|> !<|endoftext|>! <|ENDOFTEXT|>",
    " <|endoftext|> <|endoftext <|<|endoftext|>|> <|im_start|> [SEP] \n<|endoftext|>",
    "\ufffd \ud7ff\ue000 \ufdd0 \U0010fffd \u0378",
    "𝒜𝓑𝒞 𐍈 ＦＵＬＬ ｶﾀｶﾅ",
    "x" * 100 + " " + "y" * 101,
    "é" * 120,
    "ab" * 150 + " c",
)


def vocabulary_texts(tokenizer, generator, count=16, length=12):
    """Texts of random pieces.

    Args:
        tokenizer: whose.
        generator: of numpy.
        count: how many texts.
        length: pieces of each.
    """
    ids = generator.integers(0, tokenizer.vocabulary_size, (count, length))
    special = tokenizer.special_ids
    return tokenizer.decode([[i for i in row if i not in special] for row in ids])


def character_texts(step=61, width=32):
    """Texts of all blocks of Unicode, each character in a word, and by itself."""
    codes = [i for i in range(1, 0x20000, step) if not 0xD800 <= i < 0xE000]
    texts = [f"a{chr(i)}b {chr(i)} 1{chr(i)}" for i in codes]
    return ["\n".join(texts[i : i + width]) for i in range(0, len(texts), width)]
