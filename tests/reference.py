"""An independent transformer and independent searches, in float64 numpy.

Written from the papers' formulas with loops and einsum, to be compared with kzoo;
nothing here imports kzoo or Keras. A config is any object with the attributes of
`kzoo.config.ModelConfig`; weights are a dict from the paths of ARCHITECTURE.md to
arrays. There is no dropout: the reference is the model at inference.

Letters: B batch, T query length, S key length, D hidden_dim, N num_heads,
K num_key_value_heads, H head_dim, F intermediate_dim, V vocabulary_size.
"""

import dataclasses
import itertools
import math

import numpy as np

# --------------------------------------------------------------------- the model


class Reference:
    """A transformer's forward pass.

    Args:
        config: with the attributes of `ModelConfig`.
        weights: path -> array, e.g. `"encoder/layer_0/self_attention/query/kernel"`.
    """

    def __init__(self, config, weights):
        self.config = config
        self.weights = {
            path: np.asarray(value, np.float64) for path, value in weights.items()
        }

    def encode(
        self, token_ids, padding_mask=None, return_attention=False, segment_ids=None
    ):
        """Hidden states of the encoder, (B, S, D).

        With `return_attention`, also a dict from the path of an attention layer to
        its weights (B, N, T, S).
        """
        return self._stack("encoder", token_ids, padding_mask, None, None, segment_ids)[
            slice(None) if return_attention else 0
        ]

    def decode(
        self,
        token_ids,
        padding_mask=None,
        memory=None,
        memory_mask=None,
        return_attention=False,
    ):
        """Hidden states of the decoder, (B, T, D); `memory` is the encoder's result."""
        return self._stack("decoder", token_ids, padding_mask, memory, memory_mask)[
            slice(None) if return_attention else 0
        ]

    def head(self, hidden):
        """Logits (B, T, V) of hidden states (B, T, D)."""
        name = "decoder" if self.config.decoder else "encoder"
        if self.config.tie_head:
            logits = hidden @ self._token_table(name).T
        else:
            logits = hidden @ self.weights["head/kernel"]
        logits = logits * self.config.head_scale
        if self.config.head_bias:
            logits = logits + self.weights["head/bias"]
        return soft_capped(logits, self.config.head_soft_cap)

    def logits(
        self,
        token_ids,
        padding_mask=None,
        encoder_token_ids=None,
        encoder_padding_mask=None,
    ):
        """Logits (B, T, V) of the whole model.

        `token_ids` are the decoder's, or the encoder's where there is no decoder.
        """
        if not self.config.decoder:
            return self.head(self.encode(token_ids, padding_mask))
        memory = None
        if self.config.encoder:
            memory = self.encode(encoder_token_ids, encoder_padding_mask)
        return self.head(
            self.decode(token_ids, padding_mask, memory, encoder_padding_mask)
        )

    def attention_weights(
        self,
        token_ids,
        padding_mask=None,
        encoder_token_ids=None,
        encoder_padding_mask=None,
    ):
        """Path of an attention layer -> its weights (B, N, T, S), all layers."""
        if not self.config.decoder:
            return self.encode(token_ids, padding_mask, return_attention=True)[1]
        memory, found = None, {}
        if self.config.encoder:
            memory, found = self.encode(
                encoder_token_ids, encoder_padding_mask, return_attention=True
            )
        _, own = self.decode(
            token_ids, padding_mask, memory, encoder_padding_mask, return_attention=True
        )
        return {**found, **own}

    def step(self, encoder_token_ids=None):
        """The function that the searches below take: a prefix -> log p(next), (V,).

        `encoder_token_ids` is one row without padding, for an encoder-decoder.
        """
        memory = None
        if self.config.encoder:
            memory = self.encode([list(encoder_token_ids)])

        def log_probabilities(prefix):
            hidden = self.decode([list(prefix)], memory=memory)
            return log_softmax(self.head(hidden)[0, -1])

        return log_probabilities

    # Below: one stack, block by block.

    def _stack(
        self, name, token_ids, padding_mask, memory, memory_mask, segment_ids=None
    ):
        stack = getattr(self.config, name)
        token_ids = np.asarray(token_ids)
        if padding_mask is None:
            padding_mask = np.ones(token_ids.shape, bool)
        padding_mask = np.asarray(padding_mask, bool)
        positions = np.maximum(np.cumsum(padding_mask, axis=1) - 1, 0)  # (B, T)

        x = self._token_table(name)[token_ids] * stack.embedding_scale
        if stack.num_segments:
            if segment_ids is None:
                segment_ids = np.zeros(token_ids.shape, int)
            table = self.weights[f"{name}/segment_embedding/embeddings"]
            x = x + table[np.asarray(segment_ids)]
        numbers = positions + stack.first_position
        if stack.positions == "learned":
            x = x + self.weights[f"{name}/position_embedding/embeddings"][numbers]
        if stack.positions == "sinusoidal":
            x = x + sinusoidal(numbers, x.shape[-1], stack.sinusoidal_layout)
        if stack.embedding_norm:
            x = self._norm(stack, f"{name}/embedding_norm", x)
        if stack.embedding_dim:
            x = self._linear(f"{name}/embedding_projection", x, True)

        rows, length = token_ids.shape
        bias = self._position_bias(name, stack, positions)  # (B, N, T, T)

        attention = {}
        groups = stack.layer_groups or stack.num_layers
        for i in range(stack.num_layers):
            windowed = stack.attention_window is not None and (
                stack.windowed_layers is None or i in stack.windowed_layers
            )
            mask = np.zeros((rows, length, length), bool)
            for b, t, s in np.ndindex(*mask.shape):
                near = not windowed or abs(t - s) < stack.attention_window
                ordered = s <= t or not stack.causal
                mask[b, t, s] = padding_mask[b, s] and ordered and near
            wavelength, scaling = stack.rope_max_wavelength, stack.rope_scaling
            if windowed and stack.window_rope_max_wavelength is not None:
                wavelength, scaling = stack.window_rope_max_wavelength, None
            x = self._block(
                f"{name}/layer_{i // (stack.num_layers // groups)}",
                stack,
                x,
                mask,
                bias,
                (positions, wavelength, scaling),
                memory,
                memory_mask,
                attention,
                i == 0 and not stack.first_norm,
            )
        if stack.final_norm:
            x = self._norm(stack, f"{name}/final_norm", x)
        return x, attention

    def _block(
        self, path, stack, x, mask, bias, positions, memory, memory_mask, attention,
        without_first_norm,
    ):  # fmt: skip
        def sublayer(name, x, function):
            return added(name, x, function, x)

        def added(name, x, function, source):
            norm = f"{path}/{name}_norm"
            if stack.norm_position == "post":
                return self._norm(stack, norm, x + function(source))
            if not (without_first_norm and name == "self_attention"):
                source = self._norm(stack, norm, source)
            y = function(source)
            if stack.norm_position == "both":
                y = self._norm(stack, f"{path}/{name}_output_norm", y)
            return x + y

        def self_attention(x):
            rotary = positions if stack.positions == "rotary" else None
            return self._attention(
                f"{path}/self_attention", stack, x, x, mask, bias, rotary, attention
            )

        def cross_attention(x):
            rows, length, _ = x.shape
            may = np.ones((rows, length, memory.shape[1]), bool)
            if memory_mask is not None:
                may = may & np.asarray(memory_mask, bool)[:, None, :]
            return self._attention(
                f"{path}/cross_attention", stack, x, memory, may, 0.0, None, attention
            )

        def feed_forward(x):
            ff = f"{path}/feed_forward"
            act = ACTIVATIONS[stack.activation]
            inner = self._linear(f"{ff}/intermediate", x, stack.use_bias)
            if stack.feed_forward == "gated":
                inner = act(self._linear(f"{ff}/gate", x, stack.use_bias)) * inner
            else:
                inner = act(inner)
            return self._linear(f"{ff}/output", inner, stack.use_bias)

        before = x
        x = sublayer("self_attention", x, self_attention)
        if stack.parallel_residual:
            return added("feed_forward", x, feed_forward, before)
        if stack.cross_attention:
            x = sublayer("cross_attention", x, cross_attention)
        return sublayer("feed_forward", x, feed_forward)

    def _attention(self, path, stack, x, source, mask, bias, rotary, found):
        heads, kv_heads = stack.num_heads, stack.num_key_value_heads

        biased = stack.attention_bias
        biased = stack.use_bias if biased is None else biased

        def project(name, values, count):
            y = self._linear(f"{path}/{name}", values, biased)
            y = y.reshape(*y.shape[:2], count, stack.head_dim)
            if stack.query_key_norm and name != "value":
                y = self._norm(stack, f"{path}/{name}_norm", y)
            return y

        query = project("query", x, heads)
        key = project("key", source, kv_heads)
        value = project("value", source, kv_heads)
        if rotary is not None:
            width = stack.rotary_dim or stack.head_dim
            query, key = (
                np.concatenate(
                    [
                        rotate(x[..., :width], *rotary),
                        x[..., width:],
                    ],
                    axis=-1,
                )
                for x in (query, key)
            )
        rows, length = x.shape[:2]
        scores = np.zeros((rows, heads, length, source.shape[1]))
        context = np.zeros((rows, length, heads, stack.head_dim))
        weights = np.zeros_like(scores)
        group = heads // kv_heads
        for n in range(heads):
            scores[:, n] = self._similarity(
                stack, f"{path}/similarity", n, query[:, :, n], key[:, :, n // group]
            )
        if path.endswith("self_attention"):
            scores = soft_capped(scores, stack.attention_soft_cap)
        scores = scores + bias
        for n in range(heads):
            weights[:, n] = masked_softmax(scores[:, n], mask)
            context[:, :, n] = np.einsum(
                "bts,bsh->bth", weights[:, n], value[:, :, n // group]
            )
        found[path] = weights
        merged = context.reshape(rows, length, heads * stack.head_dim)
        biased = stack.attention_output_bias
        biased = stack.use_bias if biased is None else biased
        return self._linear(f"{path}/output", merged, biased)

    def _similarity(self, stack, path, head, query, key):
        """Scores (B, T, S) of query (B, T, H) and key (B, S, H) in one head."""

        def weight(name):
            return self.weights[f"{path}/{name}"][head]

        scores = np.zeros((len(query), query.shape[1], key.shape[1]))
        for b, t, s in np.ndindex(*scores.shape):
            q, k = query[b, t], key[b, s]
            if stack.similarity in ("scaled_dot", "dot"):
                scores[b, t, s] = q @ k * stack.attention_scale
            elif stack.similarity == "general":
                scores[b, t, s] = q @ weight("kernel") @ k
            elif stack.similarity == "additive":
                scores[b, t, s] = (q @ weight("vector") + k @ weight("vector")).item()
            else:
                inner = np.tanh(q @ weight("query_kernel") + k @ weight("key_kernel"))
                scores[b, t, s] = (inner @ weight("vector")).item()
        return scores

    def _position_bias(self, name, stack, positions):
        """Added to self-attention's scores: (B, N, T, T), or 0."""
        if stack.positions == "alibi":
            slopes = alibi_slopes(stack.num_heads)
            distance = np.abs(positions[:, None, :] - positions[:, :, None])
            return -slopes[None, :, None, None] * distance[:, None]
        if stack.positions == "relative":
            table = self.weights[f"{name}/position_bias/embeddings"]
            rows, length = positions.shape
            bias = np.zeros((rows, stack.num_heads, length, length))
            for b, t, s in np.ndindex(rows, length, length):
                bucket = relative_bucket(
                    int(positions[b, s] - positions[b, t]),
                    not stack.causal,
                    stack.relative_buckets,
                    stack.relative_max_distance,
                )
                bias[b, :, t, s] = table[bucket]
            return bias
        return 0.0

    def _token_table(self, name):
        if self.config.share_embeddings:
            name = "encoder"
        return self.weights[f"{name}/token_embedding/embeddings"]

    def _linear(self, path, x, use_bias):
        y = x @ self.weights[f"{path}/kernel"]
        return y + self.weights[f"{path}/bias"] if use_bias else y

    def _norm(self, stack, path, x):
        if stack.norm == "rms_norm":
            return rms_norm(x, self.weights[f"{path}/scale"], stack.norm_epsilon)
        if stack.norm == "offset_rms_norm":
            scale = 1.0 + self.weights[f"{path}/scale"]
            return rms_norm(x, scale, stack.norm_epsilon)
        gamma = self.weights[f"{path}/gamma"]
        beta = self.weights[f"{path}/beta"] if stack.norm_bias else 0.0
        if stack.norm == "std_norm":
            return std_norm(x, gamma, beta, stack.norm_epsilon)
        return layer_norm(x, gamma, beta, stack.norm_epsilon)


# ------------------------------------------------------------------- the formulas


def layer_norm(x, gamma, beta, epsilon):
    """Ba et al. (2016), with the biased variance and epsilon under the root."""
    mean = x.mean(axis=-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(axis=-1, keepdims=True)
    return gamma * (x - mean) / np.sqrt(variance + epsilon) + beta


def std_norm(x, gamma, beta, epsilon):
    """The Annotated Transformer's: the deviation of D - 1, epsilon outside the root."""
    mean = x.mean(axis=-1, keepdims=True)
    deviation = np.sqrt(((x - mean) ** 2).sum(axis=-1) / (x.shape[-1] - 1))
    return gamma * (x - mean) / (deviation[..., None] + epsilon) + beta


def rms_norm(x, scale, epsilon):
    """Zhang and Sennrich (2019), equation 4."""
    return scale * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + epsilon)


def gelu(x):
    """x times the normal distribution function of x."""
    erf = np.vectorize(math.erf, otypes=[np.float64])
    return 0.5 * x * (1.0 + erf(x / math.sqrt(2.0)))


def gelu_tanh(x):
    """Hendrycks and Gimpel (2016), the approximation of section 2."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0.0),
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "silu": lambda x: x / (1.0 + np.exp(-x)),
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "tanh": np.tanh,
    "linear": lambda x: x,
}


def log_softmax(x):
    """log p of logits, over the last axis."""
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def masked_softmax(scores, mask):
    """Softmax over the keys that `mask` allows; a row that allows none is zeros."""
    result = np.zeros(scores.shape)
    for index in np.ndindex(*scores.shape[:-1]):
        allowed = np.flatnonzero(mask[index])
        if allowed.size:
            exponentials = np.exp(scores[index][allowed] - scores[index][allowed].max())
            result[index][allowed] = exponentials / exponentials.sum()
    return result


def sinusoidal(positions, hidden_dim, layout="interleaved"):
    """Vaswani et al. (2017), section 3.5; elsewhere all sines come before cosines."""
    encoding = np.zeros((*positions.shape, hidden_dim))
    half = hidden_dim // 2
    for i in range(half):
        last = half - 1 if layout == "tensor2tensor" else half
        angle = positions / 10_000.0 ** (i / last)
        sine, cosine = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, half + i)
        encoding[..., sine] = np.sin(angle)
        encoding[..., cosine] = np.cos(angle)
    return encoding


def rotate(x, positions, max_wavelength, scaling=None):
    """Su et al. (2021), section 3.4.2, on pairs (i, i + H/2) as GPT-NeoX pairs them.

    `x` is (B, T, heads, H), `positions` (B, T).
    """
    half = x.shape[-1] // 2
    result = np.zeros_like(x)
    for i in range(half):
        frequency = max_wavelength ** (-i / half)
        if scaling is not None:
            frequency = stretched(frequency, i, 2 * half, max_wavelength, scaling)
        angle = (positions * frequency)[:, :, None]
        first, second = x[..., i], x[..., i + half]
        result[..., i] = first * np.cos(angle) - second * np.sin(angle)
        result[..., i + half] = first * np.sin(angle) + second * np.cos(angle)
    if scaling is not None and scaling.kind == "yarn":
        result *= scaling.attention_factor
    return result


def stretched(frequency, i, width, base, scaling):
    """The frequency of pair i under a `RopeScaling`, by cases as the papers say."""
    if scaling.kind == "linear":
        return frequency / scaling.factor
    wavelength = 2 * math.pi / frequency
    if scaling.kind == "bands":
        longest = scaling.original_length / scaling.low_frequency_factor
        shortest = scaling.original_length / scaling.high_frequency_factor
        if wavelength < shortest:
            return frequency
        if wavelength > longest:
            return frequency / scaling.factor
        smooth = (
            scaling.original_length / wavelength - scaling.low_frequency_factor
        ) / (scaling.high_frequency_factor - scaling.low_frequency_factor)
        return (1 - smooth) * frequency / scaling.factor + smooth * frequency

    def dimension(turns):  # Peng et al. (2023), where a pair turns so often
        trained = scaling.original_length
        return width * math.log(trained / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, width - 1)
    ramp = (i - low) / ((high - low) if high != low else 0.001)
    ramp = min(max(ramp, 0.0), 1.0)
    return ramp * frequency / scaling.factor + (1 - ramp) * frequency


def soft_capped(x, cap):
    """Gemma 2 (2024), section 2."""
    return x if cap is None else cap * np.tanh(x / cap)


def relative_bucket(relative_position, bidirectional, buckets, max_distance):
    """The T5 bucket of `key position - query position` (Raffel et al., 2020, 2.1).

    In integers, so that a distance on the border of two buckets is exact: the
    logarithm's floor is the largest k with (d/e)^n >= (max_distance/e)^k.
    """
    offset = 0
    if bidirectional:
        buckets //= 2
        offset = buckets if relative_position > 0 else 0
        distance = abs(relative_position)
    else:
        distance = max(-relative_position, 0)
    exact = buckets // 2
    if distance < exact:
        return offset + distance
    far = buckets - exact
    k = 0
    while k < far - 1 and (
        distance**far * exact ** (k + 1) >= max_distance ** (k + 1) * exact**far
    ):
        k += 1
    return offset + exact + k


def alibi_slopes(num_heads):
    """Press et al. (2022), section 3, and the authors' code for other head counts."""
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (n + 1) / power) for n in range(power)]
    doubled = [2.0 ** (-8.0 * (n + 1) / (2 * power)) for n in range(2 * power)]
    return np.array((slopes + doubled[0::2])[:num_heads])


# ------------------------------------------------------------------- the searches


@dataclasses.dataclass(frozen=True)
class Hypothesis:
    """A generated sequence.

    Attributes:
        tokens: the generated ids without the prompt, with the end token if it came.
        log_probability: their sum of log p.
        score: `log_probability` over the length penalty.
    """

    tokens: tuple
    log_probability: float
    score: float


def length_penalty(length, alpha):
    """What a log probability is divided by; the end token counts as one."""
    return float(length) ** alpha


def greedy(step, prompt, end_token_id, max_new_tokens):
    """The most probable token at each step.

    Args:
        step: a tuple of ids -> log p of the next, (V,); `Reference.step` makes one.
        prompt: ids to continue, the start token at least.
        end_token_id: ends the sequence.
        max_new_tokens: generated at most.

    Returns:
        A `Hypothesis` whose score is its log probability.
    """
    tokens, total = (), 0.0
    while len(tokens) < max_new_tokens and end_token_id not in tokens:
        log_p = step(tuple(prompt) + tokens)
        best = int(np.argmax(log_p))
        tokens, total = (*tokens, best), total + float(log_p[best])
    return Hypothesis(tokens, total, total)


def beam_search(
    step,
    prompt,
    end_token_id,
    max_new_tokens,
    beams,
    alpha=0.0,
    early_stopping=False,
    num_return=None,
):
    """Beam search with a pool of finished hypotheses.

    Each step ranks the continuations of all alive beams by log probability (ties:
    the earlier beam, then the smaller id) and reads the best `2 * beams`. One that
    ends is finished when it ranks within the first `beams`, and dropped otherwise;
    the best `beams` of the others stay alive. At `max_new_tokens` those alive are
    finished too.

    Args:
        step: as in `greedy`.
        prompt: as in `greedy`.
        end_token_id: as in `greedy`.
        max_new_tokens: as in `greedy`.
        beams: kept alive.
        alpha: exponent of `length_penalty`.
        early_stopping: `True` stops when `beams` are finished; `False` when no alive
            one can still beat the worst of the best `beams` finished ones.
        num_return: how many to return; `beams` by default.

    Returns:
        `Hypothesis` list, best score first.
    """
    alive, finished = [((), 0.0)], []

    def finish(tokens, total):
        score = total / length_penalty(len(tokens), alpha)
        finished.append(Hypothesis(tokens, total, score))
        finished.sort(key=lambda hypothesis: -hypothesis.score)
        del finished[beams:]

    for length in range(1, max_new_tokens + 1):
        candidates = []
        for beam, (tokens, total) in enumerate(alive):
            for token, log_p in enumerate(step(tuple(prompt) + tokens)):
                if log_p > -np.inf:
                    candidates.append((-(total + float(log_p)), beam, token))
        candidates.sort()
        survivors = []
        for rank, (negative, beam, token) in enumerate(candidates[: 2 * beams]):
            tokens = (*alive[beam][0], token)
            if token != end_token_id:
                survivors.append((tokens, -negative))
            elif rank < beams:
                finish(tokens, -negative)
        alive = survivors[:beams]
        if not alive:
            break
        if len(finished) == beams and length < max_new_tokens:
            if early_stopping:
                alive = []
                break
            # Log probabilities only fall, so the best that an alive beam can reach
            # is its own over the largest penalty of the lengths still possible.
            reachable = max(
                length_penalty(later, alpha)
                for later in range(length + 1, max_new_tokens + 1)
            )
            if alive[0][1] / reachable <= finished[-1].score:
                alive = []
                break
    for tokens, total in alive:
        finish(tokens, total)
    return finished[: num_return or beams]


def exhaustive(step, prompt, end_token_id, max_new_tokens, alpha=0.0, num_return=None):
    """Every sequence that ends, or has `max_new_tokens`; best score first.

    Beam search with enough beams must return the same list.
    """
    found = []

    def extend(tokens, total):
        if len(tokens) == max_new_tokens or end_token_id in tokens:
            score = total / length_penalty(len(tokens), alpha)
            found.append(Hypothesis(tokens, total, score))
            return
        for token, log_p in enumerate(step(tuple(prompt) + tokens)):
            if log_p > -np.inf:
                extend((*tokens, token), total + float(log_p))

    extend((), 0.0)
    found.sort(key=lambda hypothesis: -hypothesis.score)
    return list(itertools.islice(found, num_return))
