"""Stand-in for the compiled ``sgl_kernel`` package on a CPU-only machine.

Every name can be imported. Only the three operators that speculative decoding needs on the CPU have a body;
any other function raises when it is called, so a code path that wants a real kernel fails loudly.
"""

import ctypes

__version__ = "0.0.stub"


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Move KV slots src -> tgt in every buffer; a buffer's sources are all read before it is written."""
    targets, sources = tgt_loc.tolist(), src_loc.tolist()
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=False):
        rows = [ctypes.string_at(base + s * stride, stride) for s in sources]
        for t, row in zip(targets, rows, strict=False):
            ctypes.memmove(base + t * stride, row, stride)


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out, pool_len):
    """Read each request's slots start..end from req_to_token into the flat tensor out."""
    offset = 0
    for row, a, b in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=False):
        out[offset : offset + b - a] = req_to_token[row, a:b].to(out.dtype)
        offset += b - a


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len=None, *_):
    """Write the flat slot list out_cache_loc into each request's row of req_to_token at start..end."""
    offset = 0
    for row, a, b in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=False):
        req_to_token[row, a:b] = out_cache_loc[offset : offset + b - a].to(req_to_token.dtype)
        offset += b - a


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise RuntimeError(f"sgl_kernel stub called: {name}")

    missing.__name__ = name
    return missing
