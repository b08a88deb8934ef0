"""Which kernel PyTorch's `scaled_dot_product_attention` takes, by its own rules: the first of an
order whose conditions hold.

Source: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp of PyTorch's repository at 001f694a,
which torch 2.11 to 2.13 follow: `check_prefer_cudnn_attention` and `priority_order` for the order,
`can_use_cudnn_attention`, `can_use_flash_attention` and `can_use_mem_efficient_attention` for the
conditions. Compute capabilities are those of developer.nvidia.com/cuda-gpus, in the catalogue.
"""

from typing import Literal

from shardwise.spec.cluster import Gpu

SdpaKernel = Literal["cudnn", "flash", "efficient", "math"]

#: Widths of heads up to which cuDNN goes first, by capability (`check_cudnn_tensor_shapes`), with
#: cuDNN above 9.15.0; wheels of torch 2.11 to 2.13 for CUDA 13 bring a newer one. An older one of
#: the system's that hides it leaves FlashAttention-2 (`check_prefer_cudnn_attention`; `doctor` says
#: so).
_WIDEST_CUDNN = {(9, 0): 256, (10, 0): 128, (10, 3): 128}
#: The least of its versions, as `torch.backends.cudnn.version()` prints it, from which it does.
LEAST_CUDNN = 91501
#: FlashAttention and cuDNN take 16 bits from this capability, the memory-efficient one bfloat16.
_TENSOR_CORES_OF_16_BITS = (8, 0)
_WIDEST_FLASH = 256
#: Keys and values of DeepSeek's heads, which cuDNN takes too.
_LATENT_HEADS = (192, 128)
#: FlashAttention has no backward for heads of 193 to 224 (`check_requires_grad_and_head_dim_...`).
_WITHOUT_WIDE_BACKWARD = ((8, 6), (8, 7), (8, 9), (12, 0), (12, 1))


def sdpa_kernel(gpu: Gpu, compute: str, *, heads: tuple[int, int], masked: bool = False) -> SdpaKernel:
    """The kernel for a training's forward and backward on a GPU.

    Args:
        compute: the type of queries, keys and values: `float32`, `bfloat16` or `float16`.
        heads: widths of a head's keys and of its values.
        masked: whether a mask is handed over, where FlashAttention takes only `is_causal`.
    """
    capability, (wide, narrow) = gpu.capability, heads
    if capability is None:  # AMD's: AOTriton's kernels stand for FlashAttention's and the memory-efficient ones
        return "efficient" if masked or compute == "float32" or wide != narrow else "flash"
    in_16_bits = compute == "float16" or (compute == "bfloat16" and capability >= _TENSOR_CORES_OF_16_BITS)
    fused = in_16_bits and capability >= _TENSOR_CORES_OF_16_BITS
    widest = _WIDEST_CUDNN.get(capability, 0)
    if fused and wide % 8 == narrow % 8 == 0 and (max(heads) <= widest or (widest and heads == _LATENT_HEADS)):
        return "cudnn"
    backward = not (capability in _WITHOUT_WIDE_BACKWARD and 192 < wide <= 224)
    if fused and not masked and wide == narrow <= _WIDEST_FLASH and backward:
        return "flash"
    aligned = 8 if in_16_bits else 4
    efficient = (in_16_bits or compute == "float32") and wide % aligned == 0 and narrow % aligned == 0
    return "efficient" if efficient else "math"
