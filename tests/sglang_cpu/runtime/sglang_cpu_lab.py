"""CPU-only runtime patches for SGLang 0.5.20, loaded by its own plugin entry point; no file is changed.

They make speculative decoding of the DFLASH family *possible* on a CPU and touch none of its logic:

1. ``torch.Tensor.record_stream`` does nothing for CPU tensors (it raises there).
2. The ``torch_native`` attention backend gets a TARGET_VERIFY branch: custom mask (flat bool, FULL_MASK
   layout: one row of seq_len + width per query), else causal, else bidirectional for the draft's
   encoder-only layers.
3. The draft worker's backend fallback answers ``torch_native`` instead of a CUDA-only backend.
4. The DFLASH argument handler believes the device is CUDA while it checks it, so that native DFLASH starts
   as a baseline.
5. Two Triton helpers of the drafter (QK norm with RoPE, the write of committed KV rows) are plain torch here:
   Triton's interpreter takes most of a second for them in every step.

The module is found through ``sglang_cpu_lab-1.0.dist-info`` next to it: this folder on PYTHONPATH is
enough, nothing is installed. SGLANG_PLUGINS, when set, must list ``cpu_lab``. Never use it on a machine with a GPU.
"""

import torch


def register():
    guard_record_stream()
    add_verify_branch()
    draft_backend_fallback()
    allow_dflash_on_cpu()
    plain_draft_kv_write()
    plain_qk_norm_rope()


def guard_record_stream():
    original = torch.Tensor.record_stream
    torch.Tensor.record_stream = lambda self, stream: original(self, stream) if self.is_cuda else None


def draft_backend_fallback():
    from sglang.srt.speculative import draft_worker_common

    draft_worker_common._resolve_draft_attention_backend_fallback = lambda **_: "torch_native"


def allow_dflash_on_cpu():
    from sglang.srt.arg_groups import speculative_hook

    handler, view_of = speculative_hook._handle_dflash, speculative_hook.resolving_view

    class CudaView:
        """The view of the arguments with one answer changed."""

        device = "cuda"

        def __init__(self, view):
            self._view = view

        def __getattr__(self, name):
            return getattr(self._view, name)

    def handle(server_args):
        speculative_hook.resolving_view = lambda a: CudaView(view_of(a))
        try:
            return handler(server_args)
        finally:
            speculative_hook.resolving_view = view_of

    speculative_hook._handle_dflash = handle


def plain_draft_kv_write():
    from sglang.srt.mem_cache import memory_pool

    def write(k, v, k_cache, v_cache, loc_2d, commit_lens, row_dim, store_dtype):
        live = (torch.arange(loc_2d.shape[1]) < commit_lens[:, None]).flatten()
        slots = loc_2d.flatten()[live]
        k_cache[slots], v_cache[slots] = k[live], v[live]

    memory_pool._set_kv_buffer_prefix_valid_impl = write


def plain_qk_norm_rope():
    from sglang.srt.speculative import dflash_utils

    def norm_rope(qkv, positions, q_weight, k_weight, cos_sin_cache, num_q_heads, num_k_heads, head_dim, eps):
        tokens, heads = qkv.shape[0], num_q_heads + num_k_heads
        rows = qkv[:, : heads * head_dim].view(tokens, heads, head_dim)
        weight = torch.cat([q_weight.expand(num_q_heads, -1), k_weight.expand(num_k_heads, -1)]).float()
        wide = rows.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight
        first, second = normed.to(qkv.dtype).float().chunk(2, dim=-1)
        cos, sin = cos_sin_cache[positions].float()[:, None].chunk(2, dim=-1)
        rows.copy_(torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1))

    dflash_utils.table_qk_norm_rope_ = norm_rope


def add_verify_branch():
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    ATTENTION_BACKENDS["torch_native"] = lambda runner: verify_backend_class()(runner)


def verify_backend_class():
    from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
    from sglang.srt.layers.radix_attention import AttentionType
    from sglang.srt.mem_cache.memory_pool import KVWriteLoc

    class VerifyBackend(TorchNativeAttnBackend):
        def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **kwargs):
            if not forward_batch.forward_mode.is_target_verify():
                return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
            pool = self.token_to_kv_pool
            if save_kv_cache and k is not None:
                pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc), k, v)
            width = int(forward_batch.spec_info.draft_token_num)
            flat_mask = forward_batch.spec_info.custom_mask
            causal = layer.attn_type != AttentionType.ENCODER_ONLY
            keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
            queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
            out = torch.empty_like(queries)
            offset = 0
            for b in range(forward_batch.batch_size):
                prefix = int(forward_batch.seq_lens[b])
                total = prefix + width
                row = int(forward_batch.req_pool_indices[b])
                slots = self.req_to_token_pool.req_to_token[row, :total].long()
                if flat_mask is not None:
                    mask = flat_mask[offset : offset + width * total].view(width, total)
                    offset += width * total
                elif causal:
                    mask = torch.arange(total)[None] <= (prefix + torch.arange(width))[:, None]
                else:
                    mask = None
                rows = slice(b * width, (b + 1) * width)
                attended = torch.nn.functional.scaled_dot_product_attention(
                    queries[rows].transpose(0, 1)[None],
                    keys[slots].transpose(0, 1)[None].to(q.dtype),
                    values[slots].transpose(0, 1)[None].to(q.dtype),
                    attn_mask=mask,
                    scale=layer.scaling,
                    enable_gqa=True,
                )
                out[rows] = attended[0].transpose(0, 1)
            return out.view(q.shape[0], -1)

    return VerifyBackend
