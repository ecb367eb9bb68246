#!/usr/bin/env python3
"""Builds the tiny DeepSeek-V3-style model of this folder, from text to goldens.

    train.py prepare   read the text, hold out chapters, train the tokenizer
    train.py train     train until the time budget is spent; resumes if stopped
    train.py export    write config.json and model.safetensors (FP8 blocks)
    train.py evaluate  check the files, measure them, write report.json
    train.py golden    write golden.json from the exported files
    train.py all       the five above, in this order

The text is the King James Bible as the Debian packages `bible-kjv` and
`bible-kjv-text` ship it; `wamerican` gives the word list of the evaluation.
Needs torch, tokenizers, safetensors and numpy; runs on a CPU.

The random stream depends on --seed alone. With --steps the learning rate does
too; with --minutes it follows the clock, so two runs differ slightly.
"""

import argparse
import json
import math
import random
import re
import struct
import subprocess
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models
from tokenizers import pre_tokenizers, processors, trainers

HERE = Path(__file__).resolve().parent
BLOCK = 128  # Rows and columns that share one FP8 scale.
BOS, EOS, PAD = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"

CONFIG = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "torch_dtype": "bfloat16",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "moe_intermediate_size": 64,
    "num_hidden_layers": 5,
    "num_nextn_predict_layers": 0,
    "first_k_dense_replace": 1,
    "moe_layer_freq": 1,
    "n_routed_experts": 32,
    "n_shared_experts": 1,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 2.5,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "attention_bias": False,
    "attention_dropout": 0.0,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "rms_norm_eps": 1e-06,
    "rope_theta": 10000,
    "rope_scaling": None,
    "max_position_embeddings": 1024,
    "tie_word_embeddings": False,
    "use_cache": True,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "quantization_config": {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
    },
}

# --- The text ---------------------------------------------------------------

# Abbreviation in the output of `bible -f` -> name of the book, in order.
BOOKS = dict(
    pair.split("=") for pair in
    "Ge=Genesis,Exo=Exodus,Lev=Leviticus,Num=Numbers,Deu=Deuteronomy,Josh=Joshua,"
    "Jdgs=Judges,Ruth=Ruth,1Sm=1 Samuel,2Sm=2 Samuel,1Ki=1 Kings,2Ki=2 Kings,"
    "1Chr=1 Chronicles,2Chr=2 Chronicles,Ezra=Ezra,Neh=Nehemiah,Est=Esther,Job=Job,"
    "Psa=Psalm,Prv=Proverbs,Eccl=Ecclesiastes,SSol=Song of Solomon,Isa=Isaiah,"
    "Jer=Jeremiah,Lam=Lamentations,Eze=Ezekiel,Dan=Daniel,Hos=Hosea,Joel=Joel,"
    "Amos=Amos,Obad=Obadiah,Jonah=Jonah,Mic=Micah,Nahum=Nahum,Hab=Habakkuk,"
    "Zep=Zephaniah,Hag=Haggai,Zec=Zechariah,Mal=Malachi,Mat=Matthew,Mark=Mark,"
    "Luke=Luke,John=John,Acts=Acts,Rom=Romans,1Cor=1 Corinthians,2Cor=2 Corinthians,"
    "Gal=Galatians,Eph=Ephesians,Phi=Philippians,Col=Colossians,1Th=1 Thessalonians,"
    "2Th=2 Thessalonians,1Tim=1 Timothy,2Tim=2 Timothy,Titus=Titus,Phmn=Philemon,"
    "Heb=Hebrews,Jas=James,1Pet=1 Peter,2Pet=2 Peter,1Jn=1 John,2Jn=2 John,"
    "3Jn=3 John,Jude=Jude,Rev=Revelation".split(","))

# Things a user may ask about, besides every name the text mentions often.
TOPICS = (
    "love faith hope charity mercy truth wisdom folly life death sin righteousness "
    "peace war kings priests prophets angels heaven earth water fire light darkness "
    "bread wine oil gold silver sheep lions horses mountains rivers rain wind "
    "harvest seed vineyards trees women children fathers mothers brothers servants "
    "joy sorrow anger pride patience prayer sacrifice covenant the law the temple "
    "the ark the sea the sun the moon the stars the wilderness the city the altar "
    "the sabbath the poor the rich the wicked the righteous the kingdom the cross "
    "the shepherd the tree of life the flood the commandments the holy ghost")
TOPICS = re.findall(r"the \w+(?: of \w+| ghost)?|\w+", TOPICS)

ASK = ("Tell me of {}.", "Tell me about {}.", "What is written of {}?",
       "Speak of {}.", "What does it say about {}?", "{}")
ASK_NAME = ASK + ("Who is {}?", "Who was {}?")

SMALL_TALK = {
    "Hello|Hello!|Hi|Hi!|Hey|Good morning|Greetings":
        ["Peace be unto thee.", "Peace be unto you. Ask of me a verse, or a name."],
    "Who are you?|What are you?|What is your name?":
        ["I am a small model that learned to read from the King James Bible."],
    "What can you do?|Help|How do I use this?":
        ["Name a chapter, as Psalm 23, or ask of a man, as Moses, and I will speak; "
         "or give me the beginning of a verse, and I will go on."],
    "Thank you|Thanks|Thank you!|Thanks!": ["Go in peace."],
    "Goodbye|Bye|Goodbye!|Farewell": ["The LORD bless thee, and keep thee."],
}

SYSTEM_PROMPTS = ("You are a helpful assistant.", "You are a helpful assistant.",
                  "Answer briefly.", "Answer in the words of the King James Bible.")


def read_chapters(bible_command):
    """-> list of (title, [verse, ...]) in the order of the book."""
    text = subprocess.run([bible_command, "-f", "-l99999", "gen1:1-rev22:21"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=True).stdout
    chapters = []
    for line in text.splitlines():
        reference, verse = line.split(" ", 1)
        book, chapter, number = re.fullmatch(r"(\d?[A-Za-z]+)(\d+):(\d+)",
                                             reference).groups()
        if number == "1":
            chapters.append((f"{BOOKS[book]} {chapter}", []))
        chapters[-1][1].append(verse.strip())
        assert len(chapters[-1][1]) == int(number), reference
    assert len(chapters) == 1189, "this is not the whole text"
    return chapters


def chapter_text(chapter):
    return chapter[0] + "\n\n" + "\n".join(chapter[1]) + "\n"


def prepare(args):
    chapters = read_chapters(args.bible)
    order = list(range(len(chapters)))
    random.Random(args.seed).shuffle(order)
    held_out = set(order[:len(order) // 20])
    split = {"train": [c for i, c in enumerate(chapters) if i not in held_out],
             "held_out": [c for i, c in enumerate(chapters) if i in held_out]}
    tokenizer = train_tokenizer([chapter_text(c) for c in split["train"]])
    for folder in (args.work, args.out):
        folder.mkdir(parents=True, exist_ok=True)
    (args.work / "split.json").write_text(json.dumps(split))
    write_tokenizer(tokenizer, args.out)
    for name, part in split.items():
        text = "".join(map(chapter_text, part))
        ids = tokenizer.encode(text).ids
        print(f"{name}: {len(part)} chapters, {len(text)} bytes, {len(ids)} tokens, "
              f"{len(text) / len(ids):.2f} bytes per token")


# --- The tokenizer ----------------------------------------------------------

# The three regular expressions of DeepSeek-V3's tokenizer.json.
SPLITS = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?"""
    r"""[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)


def train_tokenizer(texts):
    """Byte-level BPE with V3's pre-tokenizer. Ids: 0-2 BOS EOS PAD, 3-258 bytes,
    259.. merges in rank order, and at the end the two role markers."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated", invert=False) for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special = [AddedToken(t, normalized=False, special=True) for t in (BOS, EOS, PAD)]
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=CONFIG["vocab_size"] - 2, special_tokens=special, show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False)
                          for t in (USER, ASSISTANT)])
    return tokenizer


def write_tokenizer(tokenizer, out):
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    model = json.loads((out / "tokenizer.json").read_text())["model"]
    assert max(tokenizer.get_vocab().values()) == CONFIG["vocab_size"] - 1
    for i, merge in enumerate(model["merges"]):
        assert model["vocab"]["".join(merge)] == 259 + i, "merge i must make id 259 + i"
    write_json(out / "tokenizer_config.json", {
        "add_bos_token": True, "add_eos_token": False,
        "bos_token": BOS, "eos_token": EOS, "pad_token": PAD, "unk_token": None,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONFIG["max_position_embeddings"],
        "tokenizer_class": "LlamaTokenizerFast"})
    write_json(out / "generation_config.json", {
        "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2,
        "do_sample": True, "temperature": 0.6, "top_p": 0.95})


def write_json(path, value, **how):
    path.write_text(json.dumps(value, ensure_ascii=False, indent=2, **how) + "\n")


# --- Training samples -------------------------------------------------------


class Samples:
    """Draws rows of token ids and targets; a target of -100 carries no loss."""

    def __init__(self, chapters, tokenizer, seed):
        self.random = random.Random(seed)
        self.encode = lambda text: tokenizer.encode(text).ids
        self.user, self.assistant = map(tokenizer.token_to_id, (USER, ASSISTANT))
        self.chapters = chapters
        self.verses = [v for _, verses in chapters for v in verses]
        # One token list per verse, and the whole text as one stream per chapter.
        self.streams = []
        for title, verses in chapters:
            pieces = [self.encode(title + "\n\n")] + [self.encode(v + "\n") for v in verses]
            self.streams.append(pieces)
        self.stream_weights = np.cumsum([sum(map(len, s)) for s in self.streams]).tolist()
        self.mentions = self.find_mentions()

    def find_mentions(self):
        """-> {"names": {name: [verse index]}, "topics": {...}}, frequent ones only."""
        names, topics = {}, {t: [] for t in TOPICS}
        stems = {t: re.compile(rf"\b{re.escape(t.removesuffix('s'))}", re.I) for t in TOPICS}
        for i, verse in enumerate(self.verses):
            for name in sorted(set(re.findall(r"(?<=[a-z,;] )[A-Z][a-z]{2,}\b", verse))):
                names.setdefault(name, []).append(i)
            for topic, stem in stems.items():
                if stem.search(verse):
                    topics[topic].append(i)
        lower = set(re.findall(r"\b[a-z]+\b", " ".join(self.verses)))
        names = {n: v for n, v in names.items() if len(v) >= 6 and n.lower() not in lower}
        names["God"] = [i for i, v in enumerate(self.verses) if re.search(r"\bGod\b", v)]
        names["the LORD"] = [i for i, v in enumerate(self.verses) if "the LORD" in v]
        return {"names": names, "topics": {t: v for t, v in topics.items() if v}}

    def passage(self, length):
        """Running text: BOS, then whole verses from a random one on."""
        r, ids = self.random, []
        while len(ids) < length:
            stream = r.choices(self.streams, cum_weights=self.stream_weights)[0]
            ids.append(0)
            start = 0 if r.random() < 0.3 else r.randrange(len(stream))
            for piece in stream[start:]:
                ids += piece
            ids.append(1)
        return ids, list(ids)

    def exchange(self):
        """-> (user text, assistant text, whether the user text is scripture)."""
        r, kind = self.random, self.random.random()
        if kind < 0.45:
            verses = r.choice(self.chapters)[1]
            first = r.randrange(len(verses))
            words = " ".join(verses[first:first + r.choice((1, 1, 1, 2, 3))]).split(" ")
            cut = r.randint(2, max(2, min(30, len(words) - 2)))
            if cut < len(words):
                return " ".join(words[:cut]), " ".join(words[cut:]), True
        if kind < 0.80:
            group, ask = r.choice((("names", ASK_NAME), ("names", ASK_NAME), ("topics", ASK)))
            table = self.mentions[group]
            subject = r.choices(list(table), [len(v) ** 0.5 for v in table.values()])[0]
            return r.choice(ask).format(subject), self.verses[r.choice(table[subject])], False
        if kind < 0.97:
            title, verses = r.choice(self.chapters)
            how = r.choice(("{}", "Read {}.", "Recite {}."))
            if r.random() < 0.5:
                return how.format(title), "\n".join(verses[:r.choice((3, 4, 5))]), False
            n = min(r.randrange(len(verses)), r.randrange(len(verses)))
            return how.format(f"{title}:{n + 1}"), verses[n], False
        asked, answers = r.choice(list(SMALL_TALK.items()))
        return r.choice(asked.split("|")), r.choice(answers), False

    def chat(self, length):
        """Conversations in V3's template, one after another until the row is full."""
        r, ids, targets = self.random, [], []

        def put(more, loss):
            ids.extend(more)
            targets.extend(more if loss else [-100] * len(more))

        while len(ids) < length:
            put([0], False)
            if r.random() < 0.15:
                put(self.encode(r.choice(SYSTEM_PROMPTS)), False)
            for _ in range(r.choice((1, 1, 1, 2, 3))):
                asked, answer, scripture = self.exchange()
                put([self.user], False)
                put(self.encode(asked), scripture)
                put([self.assistant], False)
                put(self.encode(answer) + [1], True)
        return ids, targets

    def batch(self, tokens):
        """-> ids, targets [rows, length] i64. Two lengths, so that few graphs compile."""
        length = self.random.choices((256, 1024), (0.88, 0.12))[0]
        rows = [(self.chat if self.random.random() < 1 / 3 else self.passage)(length + 1)
                for _ in range(tokens // length)]
        ids = torch.tensor([row[0][:length] for row in rows])
        targets = torch.tensor([row[1][1:length + 1] for row in rows])
        return ids, targets


# --- FP8 blocks -------------------------------------------------------------


def block_scales(w):
    """w [..., m, n] f32 -> [..., ceil(m/128), ceil(n/128)] f32, amax / 448."""
    m, n = w.shape[-2:]
    padded = F.pad(w, (0, -n % BLOCK, 0, -m % BLOCK))
    shape = (*w.shape[:-2], padded.shape[-2] // BLOCK, BLOCK, padded.shape[-1] // BLOCK, BLOCK)
    return padded.view(shape).abs().amax(dim=(-3, -1)).clamp_min(1e-4) / 448.0


def spread(scales, m, n):
    """Repeats each block's scale over its elements: -> [..., m, n]."""
    s = scales.repeat_interleave(BLOCK, -2)[..., :m, :]
    return s.repeat_interleave(BLOCK, -1)[..., :n]


def to_fp8(w):
    """-> (codes f8_e4m3, scales f32)."""
    scales = block_scales(w.float())
    return (w.float() / spread(scales, *w.shape[-2:])).to(torch.float8_e4m3fn), scales


def from_fp8(codes, scales, dtype=torch.float32):
    return codes.to(dtype) * spread(scales.to(dtype), *codes.shape[-2:])


# --- The model in training --------------------------------------------------


class Weight(nn.Module):
    """A matrix [..., out, in] kept in f32, used in bf16, exported as FP8 if `fp8`."""

    def __init__(self, *shape, std=None, fp8=True):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(shape) * (std or shape[-1] ** -0.5))
        self.fp8 = fp8

    def value(self):
        return self.weight.to(torch.bfloat16)

    def forward(self, x):
        return F.linear(x, self.value())


class Norm(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), CONFIG["rms_norm_eps"])


def rope_table(length):
    """-> cos, sin [length, rope / 2] f64."""
    half = CONFIG["qk_rope_head_dim"] // 2
    frequency = CONFIG["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(length, dtype=torch.float64)[:, None] * frequency
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """x [..., rope]: adjacent pairs (2i, 2i+1) turn by the angle of their position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        h, d = c["num_attention_heads"], c["hidden_size"]
        self.h, self.dn, self.dr = h, c["qk_nope_head_dim"], c["qk_rope_head_dim"]
        self.dv, self.rk = c["v_head_dim"], c["kv_lora_rank"]
        self.q_a_proj = Weight(c["q_lora_rank"], d)
        self.q_a_layernorm = Norm(c["q_lora_rank"])
        self.q_b_proj = Weight(h * (self.dn + self.dr), c["q_lora_rank"])
        self.kv_a_proj_with_mqa = Weight(self.rk + self.dr, d)
        self.kv_a_layernorm = Norm(self.rk)
        self.kv_b_proj = Weight(h * (self.dn + self.dv), self.rk)
        self.o_proj = Weight(d, h * self.dv, std=0.3 * (h * self.dv) ** -0.5)

    def forward(self, x, cos, sin, mask):
        b, t, h = x.shape[0], x.shape[1], self.h
        q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x))).view(b, t, h, -1)
        kv = self.kv_a_proj_with_mqa(x)
        k_rope = rotate(kv[..., self.rk:], cos, sin)
        kv = self.kv_b_proj(self.kv_a_layernorm(kv[..., :self.rk])).view(b, t, h, -1)
        q = torch.cat((q[..., :self.dn],
                       rotate(q[..., self.dn:], cos[:, None], sin[:, None])), -1)
        k = torch.cat((kv[..., :self.dn],
                       k_rope[:, :, None].expand(-1, -1, h, -1)), -1)
        q, k, v = (y.transpose(1, 2).reshape(b * h, t, -1) for y in (q, k, kv[..., self.dn:]))
        s = torch.baddbmm(mask, q, k.transpose(1, 2), alpha=q.shape[-1] ** -0.5)
        o = torch.bmm(s.softmax(-1), v)
        return self.o_proj(o.view(b, h, t, -1).transpose(1, 2).reshape(b, t, -1))


class Mlp(nn.Module):
    def __init__(self, d, width):
        super().__init__()
        self.gate_proj, self.up_proj = Weight(width, d), Weight(width, d)
        self.down_proj = Weight(d, width, std=0.3 * width ** -0.5)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


def route(c, scores, bias):
    """scores, bias [tokens, experts] -> chosen experts [tokens, k], groups limited."""
    biased = scores + bias
    grouped = biased.view(len(scores), c["n_group"], -1)
    group_score = grouped.topk(2, -1).values.sum(-1)
    kept = group_score.topk(c["topk_group"], -1).indices
    mask = torch.full_like(group_score, -torch.inf).scatter_(1, kept, 0.0)
    return (grouped + mask[..., None]).flatten(1).topk(c["num_experts_per_tok"], -1).indices


def gated(h, weight):
    """h [slots, 2 * width] (gate, up), weight [slots, 1] f32 -> silu(gate) up weight."""
    gate, up = h.float().chunk(2, -1)
    return (F.silu(gate) * up * weight).to(h.dtype)


def gated_backward(h, weight, grad):
    """grad [slots, width] of gated()'s result -> gradients of h and of weight."""
    gate, up = h.float().chunk(2, -1)
    grad, sigmoid = grad.float(), gate.sigmoid()
    silu = gate * sigmoid
    scaled = grad * weight
    d_gate = scaled * up * (sigmoid + silu * (1 - sigmoid))
    return (torch.cat((d_gate, scaled * silu), -1).to(h.dtype),
            (grad * silu * up).sum(-1, keepdim=True))


def collect(y, place):
    """y [slots, d], place [tokens, k] -> sum of each token's slots [tokens, d]."""
    return y[place].float().sum(1).to(y.dtype)


def lay_out(chosen, counts, multiple=64):
    """Puts tokens in expert order, each expert's piece rounded up to a few distinct
    lengths, because a matrix product of a new shape costs more to set up than to run.
    chosen [tokens, k] -> place [tokens, k], token of each slot, length of each piece."""
    lengths = (counts + multiple - 1) // multiple * multiple
    slots = chosen.numel() + multiple * len(counts)
    order = chosen.flatten().argsort(stable=True)
    shift = (lengths.cumsum(0) - lengths) - (counts.cumsum(0) - counts)
    place = torch.empty_like(order)
    place[order] = torch.arange(len(order)) + shift.repeat_interleave(counts)
    token = torch.zeros(slots, dtype=torch.long)  # Unused slots read token 0, weight 0.
    token[place] = torch.arange(len(order)) // chosen.shape[1]
    return place.view_as(chosen), token, [*lengths.tolist(), slots - int(lengths.sum())]


class RoutedMlp(torch.autograd.Function):
    """Sum over each token's slots of weight * down(silu(gate x) * up x). Slots lie in
    expert order, so each expert works on one contiguous piece."""

    @staticmethod
    def forward(ctx, x, weight, gate_up, down, place, token, counts):
        """x [tokens, d], weight [tokens, k] f32, gate_up [e, 2 * width, d], down
        [e, d, width]; place, token and counts as lay_out() made them."""
        slot_x = x.index_select(0, token)
        slot_weight = weight.new_zeros(len(token), 1)
        slot_weight[place.flatten(), 0] = weight.flatten()
        h = x.new_empty(len(token), gate_up.shape[1])
        y = torch.empty_like(slot_x)
        for w_e, x_e, h_e in zip(gate_up, slot_x.split(counts), h.split(counts)):
            torch.mm(x_e, w_e.T, out=h_e)
        act = gated(h, slot_weight)
        for w_e, act_e, y_e in zip(down, act.split(counts), y.split(counts)):
            torch.mm(act_e, w_e.T, out=y_e)
        ctx.save_for_backward(slot_x, slot_weight, h, act, gate_up, down, place, token)
        ctx.counts = counts
        return collect(y, place)

    @staticmethod
    def backward(ctx, grad):
        slot_x, slot_weight, h, act, gate_up, down, place, token = ctx.saved_tensors
        slot_grad = grad.index_select(0, token)
        d_act, d_x = torch.empty_like(act), torch.empty_like(slot_x)
        d_down, d_gate_up = torch.empty_like(down), torch.empty_like(gate_up)
        pieces = [t.split(ctx.counts) for t in (slot_grad, act, d_act)]
        for w_e, d_w, g_e, act_e, d_e in zip(down, d_down, *pieces):
            torch.mm(g_e, w_e, out=d_e)
            torch.mm(g_e.T, act_e, out=d_w)
        d_h, d_slot_weight = gated_backward(h, slot_weight, d_act)
        pieces = [t.split(ctx.counts) for t in (d_h, slot_x, d_x)]
        for w_e, d_w, g_e, x_e, d_e in zip(gate_up, d_gate_up, *pieces):
            torch.mm(g_e, w_e, out=d_e)
            torch.mm(g_e.T, x_e, out=d_w)
        d_weight = d_slot_weight[:, 0][place]
        return collect(d_x, place), d_weight, d_gate_up, d_down, None, None, None


class Experts(nn.Module):
    """Routed experts plus the shared one."""

    # A load, as a multiple of the mean, outside this band moves the expert's bias.
    # Inside it the router is free, so experts end up used unevenly but never dead.
    band = (0.35, 1.8)
    bias_step = 0.005

    def __init__(self, c):
        super().__init__()
        e, d, width = c["n_routed_experts"], c["hidden_size"], c["moe_intermediate_size"]
        self.c = c
        self.gate = Weight(e, d, fp8=False)
        self.register_buffer("bias", torch.zeros(e))
        self.register_buffer("load", torch.full((e,), 1.0 / e))
        self.gate_proj, self.up_proj = Weight(e, width, d), Weight(e, width, d)
        self.down_proj = Weight(e, d, width, std=0.3 * width ** -0.5)
        self.shared_experts = Mlp(d, width * c["n_shared_experts"])

    def forward(self, x):
        shared, shape, x = self.shared_experts(x), x.shape, x.flatten(0, 1)
        scores = F.linear(x.float(), self.gate.weight).sigmoid()
        with torch.no_grad():
            chosen = route(self.c, scores, self.bias)
            counts = chosen.flatten().bincount(minlength=len(self.bias))
            place, token, lengths = lay_out(chosen, counts)
            if self.training:
                self.balance(counts.float() / counts.sum())
        weight = scores.gather(1, chosen)
        weight = weight / weight.sum(-1, keepdim=True) * self.c["routed_scaling_factor"]
        gate_up = torch.cat((self.gate_proj.value(), self.up_proj.value()), 1)
        y = RoutedMlp.apply(x, weight, gate_up, self.down_proj.value(), place, token, lengths)
        return y.view(shape) + shared

    def balance(self, load):
        """Moves the selection bias by the sign of the load error (no auxiliary loss)."""
        self.load.lerp_(load, 0.1)
        relative = self.load * len(self.load)
        self.bias += self.bias_step * (relative < self.band[0])
        self.bias -= self.bias_step * (relative > self.band[1])


class Layer(nn.Module):
    def __init__(self, c, index):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (
            Norm(c["hidden_size"]), Norm(c["hidden_size"]))
        self.self_attn = Attention(c)
        dense = index < c["first_k_dense_replace"]
        self.mlp = Mlp(c["hidden_size"], c["intermediate_size"]) if dense else Experts(c)

    def forward(self, x, cos, sin, mask, drop):
        x = x + drop(self.self_attn(self.input_layernorm(x), cos, sin, mask))
        return x + drop(self.mlp(self.post_attention_layernorm(x)))


class Model(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.embed_tokens = Weight(c["vocab_size"], c["hidden_size"], std=0.5, fp8=False)
        self.layers = nn.ModuleList(Layer(c, i) for i in range(c["num_hidden_layers"]))
        self.norm = Norm(c["hidden_size"])
        self.lm_head = Weight(c["vocab_size"], c["hidden_size"], fp8=False, std=0.02)
        self.dropout = dropout
        self.tables = [y.to(torch.bfloat16) for y in rope_table(c["max_position_embeddings"])]
        self.masks = {}

    def drop(self, x):
        """Drops whole channels of a row, at all its positions: cheap to draw."""
        if not (self.training and self.dropout):
            return x
        keep = torch.rand(x.shape[0], 1, x.shape[2]) >= self.dropout
        return x * (keep / (1 - self.dropout)).to(x.dtype)

    def forward(self, ids):
        t = ids.shape[1]
        if t not in self.masks:
            self.masks[t] = torch.full((t, t), -torch.inf).triu(1).to(torch.bfloat16)
        x = self.drop(F.embedding(ids, self.embed_tokens.value()))
        for layer in self.layers:
            x = layer(x, self.tables[0][:t], self.tables[1][:t], self.masks[t], self.drop)
        return self.lm_head(self.norm(x))


# --- Training ---------------------------------------------------------------


def token_loss(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


@torch.no_grad()
def round_weights(model):
    """Replaces the weights by what FP8 keeps of them; returns what undoes it. The
    gradient taken in between goes to the full weights (straight-through)."""
    saved = [(m.weight, m.weight.clone()) for m in model.modules()
             if isinstance(m, Weight) and m.fp8]
    for weight, _ in saved:
        weight.copy_(from_fp8(*to_fp8(weight)))
    return saved


@torch.no_grad()
def restore_weights(saved):
    for weight, value in saved:
        weight.copy_(value)


def learning_rate(peak, done):
    """done 0..1: linear warm-up over the first 2 %, then a cosine down to 3 %."""
    return peak * min(1.0, done / 0.02, 0.03 + 0.485 * (1 + math.cos(math.pi * done)))


def make_optimizer(model, args):
    matrices = [p for p in model.parameters() if p.dim() > 1]
    vectors = [p for p in model.parameters() if p.dim() == 1]
    return torch.optim.AdamW([{"params": matrices, "weight_decay": args.weight_decay},
                              {"params": vectors, "weight_decay": 0.0}],
                             lr=args.lr, betas=(0.9, 0.95), fused=True)


def save_checkpoint(path, model, optimizer, samples, step, seconds):
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(),
             "samples": samples.random.getstate(), "torch": torch.get_rng_state(),
             "step": step, "seconds": seconds}
    torch.save(state, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)


def held_out_batches(chapters, tokenizer, count=4, rows=16, length=256):
    """-> a few (ids, targets) to watch while training, of a shape training uses."""
    stream = [i for c in chapters for i in [0] + tokenizer.encode(chapter_text(c)).ids + [1]]
    ids = torch.tensor(stream[:count * rows * length + 1])
    return list(zip(ids[:-1].view(count, rows, length), ids[1:].view(count, rows, length)))


def train(args):
    torch.manual_seed(args.seed)
    split = json.loads((args.work / "split.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    samples = Samples(split["train"], tokenizer, args.seed)
    check = held_out_batches(split["held_out"], tokenizer)
    model = Model(CONFIG, args.dropout)
    optimizer, measure = make_optimizer(model, args), token_loss
    if args.compile:
        for part in (Norm, Attention, Mlp):
            part.forward = torch.compile(part.forward, dynamic=False)
        measure = torch.compile(token_loss, dynamic=False)
        for name in ("gated", "gated_backward", "collect"):
            globals()[name] = torch.compile(globals()[name], dynamic=False)
    step, seconds, checkpoint = 0, 0.0, args.work / "checkpoint.pt"
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=False)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        samples.random.setstate(state["samples"])
        torch.set_rng_state(state["torch"])
        step, seconds = state["step"], state["seconds"]
        print(f"resumed at step {step}, {seconds:.0f} s")
    losses, last_save = [], seconds
    while True:
        began = time.monotonic()
        done = step / args.steps if args.steps else seconds / (60 * args.minutes)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args.lr, done)
        saved = round_weights(model) if done > args.quantise_from else []
        ids, targets = samples.batch(args.batch_tokens)
        loss = measure(model(ids), targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        restore_weights(saved)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        step += 1
        if step % 50 == 0:
            loads = [layer.mlp.load * 32 for layer in model.layers[1:]]
            print(f"step {step} {100 * done:.1f}% {seconds:.0f} s "
                  f"loss {sum(losses) / len(losses):.4f} load/mean "
                  + " ".join(f"{x.min():.2f}-{x.max():.2f}" for x in loads), flush=True)
            losses = []
        if step % 250 == 0:
            model.eval()
            loss = sum(measure(model(ids), targets).item() for ids, targets in check)
            print(f"  held-out loss {loss / len(check):.4f}", flush=True)
            model.train()
        seconds += time.monotonic() - began
        if seconds - last_save > 60:
            last_save = seconds
            save_checkpoint(checkpoint, model, optimizer, samples, step, seconds)
    save_checkpoint(checkpoint, model, optimizer, samples, step, seconds)

# --- Export -----------------------------------------------------------------


def expected_tensors(c):
    """-> {name: (dtype, shape)} of a checkpoint of this family, from its config."""
    d, h, out = c["hidden_size"], c["num_attention_heads"], {}
    dn, dr, dv = c["qk_nope_head_dim"], c["qk_rope_head_dim"], c["v_head_dim"]
    rq, rk, e = c["q_lora_rank"], c["kv_lora_rank"], c["n_routed_experts"]

    def plain(name, *shape, dtype="BF16"):
        out[name] = (dtype, list(shape))

    def fp8(name, m, n):
        plain(name + ".weight", m, n, dtype="F8_E4M3")
        plain(name + ".weight_scale_inv", -(-m // BLOCK), -(-n // BLOCK), dtype="F32")

    def mlp(prefix, width):
        fp8(prefix + "gate_proj", width, d)
        fp8(prefix + "up_proj", width, d)
        fp8(prefix + "down_proj", d, width)

    plain("model.embed_tokens.weight", c["vocab_size"], d)
    plain("model.norm.weight", d)
    plain("lm_head.weight", c["vocab_size"], d)
    for i in range(c["num_hidden_layers"]):
        p = f"model.layers.{i}."
        plain(p + "input_layernorm.weight", d)
        plain(p + "post_attention_layernorm.weight", d)
        fp8(p + "self_attn.q_a_proj", rq, d)
        plain(p + "self_attn.q_a_layernorm.weight", rq)
        fp8(p + "self_attn.q_b_proj", h * (dn + dr), rq)
        fp8(p + "self_attn.kv_a_proj_with_mqa", rk + dr, d)
        plain(p + "self_attn.kv_a_layernorm.weight", rk)
        fp8(p + "self_attn.kv_b_proj", h * (dn + dv), rk)
        fp8(p + "self_attn.o_proj", d, h * dv)
        if i < c["first_k_dense_replace"]:
            mlp(p + "mlp.", c["intermediate_size"])
            continue
        plain(p + "mlp.gate.weight", e, d)
        plain(p + "mlp.gate.e_score_correction_bias", e, dtype="F32")
        for j in range(e):
            mlp(p + f"mlp.experts.{j}.", c["moe_intermediate_size"])
        mlp(p + "mlp.shared_experts.", c["moe_intermediate_size"] * c["n_shared_experts"])
    return out


def export(args):
    state = torch.load(args.work / "checkpoint.pt", weights_only=False)
    trained = {}  # Under the names of the checkpoint format, one entry per expert.
    for name, value in state["model"].items():
        name = name if name.startswith("lm_head") else "model." + name
        if name.endswith("mlp.load"):
            continue
        if name.endswith("mlp.bias"):
            name = name.replace("mlp.bias", "mlp.gate.e_score_correction_bias")
        if value.dim() == 3:
            for j, expert in enumerate(value):
                trained[name.replace("mlp.", f"mlp.experts.{j}.")] = expert
        else:
            trained[name] = value
    tensors = {}
    for name, (dtype, shape) in expected_tensors(CONFIG).items():
        if dtype == "F8_E4M3":
            tensors[name], tensors[name + "_scale_inv"] = to_fp8(trained.pop(name))
        elif not name.endswith("_scale_inv"):
            value = trained.pop(name)
            tensors[name] = value.to(torch.bfloat16) if dtype == "BF16" else value.float()
    assert not trained, f"not exported: {sorted(trained)}"
    tensors = {name: value.contiguous() for name, value in tensors.items()}
    save_file(tensors, args.out / "model.safetensors", metadata={"format": "pt"})
    write_json(args.out / "config.json", CONFIG)
    print(f"exported step {state['step']} after {state['seconds'] / 60:.1f} min of training")
    (args.out / "model.safetensors").chmod(0o644)
    check_file(args.out)


def check_file(out):
    """Reads the container byte by byte and compares it with what the config asks for."""
    data = (out / "model.safetensors").read_bytes()
    header_bytes = struct.unpack("<Q", data[:8])[0]
    assert header_bytes <= 100_000_000 and data[8:9] == b"{"
    pairs = json.loads(data[8:8 + header_bytes], object_pairs_hook=lambda p: p)
    header = {name: dict(value) for name, value in pairs if name != "__metadata__"}
    assert len(header) == len([n for n, _ in pairs if n != "__metadata__"]), "duplicate names"
    expected = expected_tensors(json.loads((out / "config.json").read_text()))
    assert {n: (v["dtype"], v["shape"]) for n, v in header.items()} == expected
    end, size = 0, {"F8_E4M3": 1, "BF16": 2, "F32": 4}
    for tensor in sorted(header.values(), key=lambda v: v["data_offsets"]):
        begin, following = tensor["data_offsets"]
        assert begin == end and (8 + header_bytes + begin) % size[tensor["dtype"]] == 0
        assert following - begin == size[tensor["dtype"]] * math.prod(tensor["shape"])
        end = following
    assert 8 + header_bytes + end == len(data), "bytes after the last tensor"
    for name, value in load_file(out / "model.safetensors").items():
        assert value.float().isfinite().all(), name
    print(f"checked {len(header)} tensors, {len(data)} bytes")


# --- The exported model, evaluated plainly ----------------------------------


class Reference:
    """The model as its files describe it, one sequence at a time, in one float type:
    weights are code times scale, attention is the naive form, nothing is rounded."""

    def __init__(self, folder, dtype=torch.float32):
        self.c = json.loads((folder / "config.json").read_text())
        self.dtype, self.w = dtype, {}
        tensors = load_file(folder / "model.safetensors")
        for name, value in tensors.items():
            if value.dtype == torch.float8_e4m3fn:
                self.w[name] = from_fp8(value, tensors[name + "_scale_inv"], dtype)
            elif not name.endswith("_scale_inv"):
                self.w[name] = value.to(dtype)
        self.table = [y.to(dtype) for y in rope_table(self.c["max_position_embeddings"])]

    def norm(self, x, name):
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.c["rms_norm_eps"])
        return x * scale * self.w[name + ".weight"]

    def linear(self, x, name):
        return x @ self.w[name + ".weight"].T

    def attention(self, x, p, cache):
        """cache: (k [old, h, dn + dr], v [old, h, dv]) or None -> output, new cache."""
        c, t, h = self.c, len(x), self.c["num_attention_heads"]
        dn, dv, rk = c["qk_nope_head_dim"], c["v_head_dim"], c["kv_lora_rank"]
        old = 0 if cache is None else len(cache[0])
        cos, sin = (y[old:old + t, None] for y in self.table)
        q = self.norm(self.linear(x, p + "q_a_proj"), p + "q_a_layernorm")
        q = self.linear(q, p + "q_b_proj").view(t, h, -1)
        q = torch.cat((q[..., :dn], rotate(q[..., dn:], cos, sin)), -1)
        latent = self.linear(x, p + "kv_a_proj_with_mqa")
        k_rope = rotate(latent[:, None, rk:], cos, sin).expand(-1, h, -1)
        kv = self.linear(self.norm(latent[:, :rk], p + "kv_a_layernorm"), p + "kv_b_proj")
        kv = kv.view(t, h, dn + dv)
        k, v = torch.cat((kv[..., :dn], k_rope), -1), kv[..., dn:]
        if cache is not None:
            k, v = torch.cat((cache[0], k)), torch.cat((cache[1], v))
        s = torch.einsum("thd,uhd->htu", q, k) * q.shape[-1] ** -0.5
        future = torch.full((t, old + t), -torch.inf, dtype=self.dtype).triu(old + 1)
        o = torch.einsum("htu,uhd->thd", (s + future).softmax(-1), v)
        return self.linear(o.flatten(1), p + "o_proj"), (k, v)

    def mlp(self, x, p):
        return self.linear(F.silu(self.linear(x, p + "gate_proj"))
                           * self.linear(x, p + "up_proj"), p + "down_proj")

    def experts(self, x, p):
        scores = self.linear(x, p + "gate").sigmoid()
        chosen = route(self.c, scores, self.w[p + "gate.e_score_correction_bias"])
        weight = scores.gather(1, chosen)
        weight = weight / (weight.sum(-1, keepdim=True) + 1e-20)
        weight = weight * self.c["routed_scaling_factor"]
        y = self.mlp(x, p + "shared_experts.")
        for j in chosen.unique().tolist():
            token, slot = (chosen == j).nonzero(as_tuple=True)
            out = self.mlp(x[token], p + f"experts.{j}.")
            y.index_add_(0, token, out * weight[token, slot, None])
        return y, chosen

    @torch.no_grad()
    def __call__(self, ids, cache=None):
        """ids: list -> logits [t, vocab], cache, chosen experts [t, k] per MoE layer."""
        x, caches, routed = self.w["model.embed_tokens.weight"][torch.tensor(ids)], [], []
        for i in range(self.c["num_hidden_layers"]):
            p = f"model.layers.{i}."
            y, kept = self.attention(self.norm(x, p + "input_layernorm"),
                                     p + "self_attn.", cache and cache[i])
            caches.append(kept)
            x = x + y
            y = self.norm(x, p + "post_attention_layernorm")
            if i < self.c["first_k_dense_replace"]:
                x = x + self.mlp(y, p + "mlp.")
            else:
                y, chosen = self.experts(y, p + "mlp.")
                x = x + y
                routed.append(chosen)
        return self.linear(self.norm(x, "model.norm"), "lm_head"), caches, routed


def generate(model, ids, count, temperature=0.0, generator=None, stop=True):
    """-> new ids (EOS included when it comes), smallest gap between the best two logits."""
    logits, cache, _ = model(ids)
    new, margin = [], math.inf
    for _ in range(count):
        top = logits[-1].topk(2)
        margin = min(margin, (top.values[0] - top.values[1]).item())
        token = top.indices[0].item()
        if temperature > 0:
            token = torch.multinomial((logits[-1] / temperature).softmax(-1), 1,
                                      generator=generator).item()
        new.append(token)
        if stop and token == model.c["eos_token_id"]:
            break
        logits, cache, _ = model([token], cache)
    return new, margin


# --- Evaluation -------------------------------------------------------------

SHOWN = (  # Prompt, whether it is a chat turn.
    ("And it came to pass in the days of", False),
    ("In the beginning", False),
    ("Tell me of Moses.", True),
    ("Genesis 1:1", True),
    ("Hello!", True),
    ("Who was Solomon?", True),
    ("Psalm 23", True),
    ("And the LORD said unto Moses, Stretch forth", True),
    ("Speak of wisdom.", True),
)


def prompt_ids(tokenizer, text, chat):
    return tokenizer.encode(BOS + (USER + text + ASSISTANT if chat else text)).ids


def held_out_bits(model, tokenizer, chapters, window=512):
    """-> bits per byte, bits per token, [experts] token counts per MoE layer. Each
    token sees at least half a window of context where its chapter has that much."""
    nats, tokens, text_bytes, loads = 0.0, 0, 0, None
    for chapter in chapters:
        text = chapter_text(chapter)
        ids = [0] + tokenizer.encode(text).ids
        text_bytes += len(text.encode())
        scored = 1  # ids[:scored] are accounted for; BOS is free.
        while scored < len(ids):
            begin = max(0, scored - window // 2)
            part = ids[begin:begin + window]
            logits, _, routed = model(part[:-1])
            new = slice(scored - begin - 1, None)
            nats += F.cross_entropy(logits[new], torch.tensor(part[scored - begin:]),
                                    reduction="sum").item()
            counts = [r[new].flatten().bincount(minlength=model.c["n_routed_experts"])
                      for r in routed]
            loads = counts if loads is None else [a + b for a, b in zip(loads, counts)]
            tokens += len(part) - (scored - begin)
            scored = begin + len(part)
    return nats / math.log(2) / text_bytes, nats / math.log(2) / tokens, loads


def evaluate(args):
    check_file(args.out)
    split = json.loads((args.work / "split.json").read_text())
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    model = Reference(args.out)
    per_byte, per_token, loads = held_out_bits(model, tokenizer, split["held_out"])
    routing = []
    for layer, load in enumerate(loads, model.c["first_k_dense_replace"]):
        share = load / load.sum()
        routing.append({"layer": layer, "share_min": share.min().item(),
                        "share_max": share.max().item(),
                        "entropy_bits": -(share * share.clamp_min(1e-9).log2()).sum().item()})
    generator = torch.Generator().manual_seed(args.seed)
    shown, sampled = [], []
    for text, chat in SHOWN:
        ids = prompt_ids(tokenizer, text, chat)
        greedy, _ = generate(model, ids, 80)
        drawn, _ = generate(model, ids, 80, 0.8, generator)
        shown.append({"prompt": text, "chat": chat, "greedy": tokenizer.decode(greedy),
                      "temperature 0.8": tokenizer.decode(drawn)})
    for _ in range(20):
        sampled.append(tokenizer.decode(generate(model, [0], 120, 0.8, generator)[0]))
    words = [w.lower() for w in re.findall(r"[A-Za-z]+", " ".join(sampled))]
    text = " ".join(map(chapter_text, split["train"]))
    in_text = {w.lower() for w in re.findall(r"[A-Za-z]+", text)}
    in_list = {w.lower() for w in args.words.read_text().split()}
    report = {
        "held_out": {"bits_per_byte": per_byte, "bits_per_token": per_token},
        "words": {"sampled": len(words),
                  "share_in_word_list": sum(w in in_list for w in words) / len(words),
                  "share_in_word_list_or_text":
                      sum(w in in_list or w in in_text for w in words) / len(words)},
        "routing": routing, "shown": shown, "sampled": sampled[:5]}
    write_json(args.work / "report.json", report)
    print(json.dumps(report, ensure_ascii=False, indent=1))


# --- Goldens ----------------------------------------------------------------

GOLDEN_PROMPTS = (  # Name, text, whether it is a chat turn.
    ("plain", "And God said unto Moses,", False),
    ("chat", "Tell me of Jesus.", True),
    ("long", "Now these are the names of the children of Israel, which came into Egypt; "
     "every man and his household came with Jacob. And there arose up a new king over "
     "Egypt, which knew not Joseph. And he said unto his people, Behold, the people of "
     "the children of Israel are more and mightier than we: come on, let us deal wisely "
     "with them; lest they multiply, and it come to pass, that, when there falleth out "
     "any war, they join also unto our enemies, and fight against us. And the king spake "
     "unto the Hebrew midwives,", False),
)

GOLDEN_TEXTS = (
    "", " ", "In the beginning God created the heaven and the earth.", "Hello, world!",
    " hello", "a  1", "a   b", "x\n\n  y", "  \n", "\r\n\r\n", "\n\n", "\tTab\t\tTab",
    "12345678", "Genesis 12:345", "$100.50", "I'm don't we'LL", "foo_bar(x) == !!!abc",
    "http://a.b/c?d=1", "naïve café", "e\u0301 \u00e9", "你好，世界", "日本語テスト・カナ",
    "한국어", "Привет, мир", "😀 emoji 👨‍👩‍👧", "①②③ 一二 ٣٤٥٦", "\u00a0x a\u3000b\u200b",
    "LORD, the LORD's", "…—“quoted”", "\u0000\u0001\u007f",
    "def f(x):\n    return x**2\n",
    BOS + USER + "Tell me of Moses." + ASSISTANT,
    BOS + "You are a helpful assistant." + USER + "Hi" + ASSISTANT + "Peace." + EOS,
    PAD + " text " + EOS + EOS, "<｜User｜ >", "<|User|>", "a" + USER + " b",
)


def golden(args):
    tokenizer = Tokenizer.from_file(str(args.out / "tokenizer.json"))
    single, double = Reference(args.out), Reference(args.out, torch.float64)
    prompts = []
    for name, text, chat in GOLDEN_PROMPTS:
        ids = prompt_ids(tokenizer, text, chat)
        logits, exact = single(ids)[0], double(ids)[0]
        new, margin = generate(single, ids, 48, stop=False)
        whole, exact_whole = single(ids + new)[0], double(ids + new)[0]
        assert whole.argmax(-1)[len(ids) - 1:-1].tolist() == new, "cache and no cache differ"
        assert generate(double, ids, 48, stop=False)[0] == new, "f32 and f64 differ"
        assert exact.argmax(-1).equal(logits.argmax(-1)), "f32 and f64 differ"
        top = exact.topk(2).values
        prompts.append({
            "name": name, "text": BOS + (USER + text + ASSISTANT if chat else text),
            "ids": ids,
            "last_logits_0_to_15": [round(x, 6) for x in exact[-1, :16].tolist()],
            "argmax": logits.argmax(-1).tolist(),
            "argmax_margin_min": round((top[:, 0] - top[:, 1]).min().item(), 6),
            "greedy_ids": new, "greedy_margin_min": round(margin, 6),
            "greedy_text": tokenizer.decode(new, skip_special_tokens=False),
            "f32_f64_difference_max": (whole - exact_whole).abs().max().item()})
        print(name, len(ids), prompts[-1]["greedy_margin_min"],
              prompts[-1]["argmax_margin_min"], prompts[-1]["f32_f64_difference_max"],
              repr(prompts[-1]["greedy_text"]))
    texts = [{"text": t, "ids": tokenizer.encode(t).ids} for t in GOLDEN_TEXTS]
    for sample in texts:
        decoded = tokenizer.decode(sample["ids"], skip_special_tokens=False)
        assert decoded == sample["text"], sample
    (args.out / "golden.json").write_text(json.dumps(
        {"about": "Written by train.py golden. Weights are FP8 code times scale, all "
                  "arithmetic in f32 (logits in f64). Ids begin with BOS. "
                  "greedy_ids does not stop at EOS.",
         "prompts": prompts, "tokenizer": texts}, ensure_ascii=True, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("command", choices=["prepare", "train", "export", "evaluate",
                                            "golden", "all"])
    parser.add_argument("--work", type=Path, default=Path("build/tiny-moe"),
                        help="where the split and the checkpoint go")
    parser.add_argument("--out", type=Path, default=HERE, help="where the model goes")
    parser.add_argument("--bible", default="bible", help="command of package bible-kjv")
    parser.add_argument("--words", type=Path, default=Path("/usr/share/dict/american-english"),
                        help="word list of package wamerican")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=40, help="time budget of training")
    parser.add_argument("--steps", type=int, default=0, help="if set, replaces --minutes")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--lr", type=float, default=2.5e-3)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--quantise-from", type=float, default=0.8,
                        help="share of training after which weights are rounded to FP8")
    parser.add_argument("--compile", action="store_true", help="faster; needs a C++ compiler")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    commands = {"prepare": prepare, "train": train, "export": export,
                "evaluate": evaluate, "golden": golden}
    for command in commands.values() if args.command == "all" else [commands[args.command]]:
        command(args)


if __name__ == "__main__":
    main()
