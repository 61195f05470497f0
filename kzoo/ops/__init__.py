"""The op vocabulary: `keras.ops` on tensors, ONNX nodes on an `OnnxValue`.

Layers and search are written over these functions and the operators
`+ - * / // % ** == != < <= > >= & | ~`, so that one `call` runs in eager mode, in
`fit`, in a SavedModel and in ONNX. Ops keep Keras's names and meaning; ints are int32
on tensors and int64 in ONNX. What Keras's backends do differently (`/` of ints, mixed
dtypes) is refused in ONNX: cast first.
"""

# What is imported is the vocabulary.
# ruff: noqa: F401
from kzoo.ops.accelerator import full_float32, settled
from kzoo.ops.array import (
    absolute,
    all,
    any,
    arange,
    argmax,
    argsort,
    as_bool,
    broadcast_to,
    cast,
    concatenate,
    cumsum,
    dim,
    equal,
    erf,
    exp,
    expand_dims,
    full,
    log,
    max,
    maximum,
    mean,
    members,
    minimum,
    not_equal,
    relu,
    reshape,
    shape,
    sigmoid,
    sin,
    slice_axis,
    split,
    sqrt,
    sum,
    take,
    take_along_axis,
    tanh,
    top_k,
    transpose,
    where,
)
from kzoo.ops.buffers import buffers_grow, fixed_buffers
from kzoo.ops.control import (
    append,
    as_scalar,
    buffer,
    cond,
    required,
    while_loop,
)
from kzoo.ops.heads import (
    attention,
    cached_length,
    earlier_cache,
    joined_cache,
    memory_heads,
    merge_heads,
    rotate,
    soft_capped,
    split_heads,
)
from kzoo.ops.nn import (
    ACTIVATIONS,
    add_bias,
    embedding,
    gelu,
    gelu_tanh,
    is_onnx,
    layer_norm,
    linear,
    linear_by_head,
    linear_transposed,
    linears,
    log_softmax,
    matmul,
    offset_rms_norm,
    rms_norm,
    silu,
    softmax,
    std_norm,
)
from kzoo.ops.onnx_graph import file_option, saves_memory
