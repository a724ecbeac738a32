"""Attention row by row, by the contract's words alone."""

from __future__ import annotations

import torch


class Attention:
    def __init__(self, *, num_heads, num_kv_heads, head_dim, block_tokens, dtype, device):
        self._queries_per_head = num_heads // num_kv_heads

    def plan(self, batch):
        return batch

    def write(self, k_TKH, v_TKH, kv, metadata):
        for t, (block, offset) in enumerate(self._cells(metadata)):
            kv.k[block, :, offset] = k_TKH[t]
            kv.v[block, :, offset] = v_TKH[t]

    def attend(self, q_TNH, kv, metadata, *, scale, sinks_N=None, softcap=0.0):
        out_TNH = torch.empty_like(q_TNH)
        starts = metadata.query_start.tolist()
        for row, context in enumerate(metadata.context_tokens.tolist()):
            for t in range(starts[row], starts[row + 1]):
                last = context + t - starts[row]
                first = max(0, last + 1 - metadata.window) if metadata.window else 0
                keys_SKH, values_SKH = self._gather(kv, metadata, row, first, last + 1)
                out_TNH[t] = self._token(q_TNH[t], keys_SKH, values_SKH, scale, sinks_N, softcap)
        return out_TNH

    def _token(self, q_NH, keys_SKH, values_SKH, scale, sinks_N, softcap):
        keys_SNH = keys_SKH.repeat_interleave(self._queries_per_head, dim=1)
        values_SNH = values_SKH.repeat_interleave(self._queries_per_head, dim=1)
        scores_NS = torch.einsum("nh,snh->ns", q_NH, keys_SNH) * scale
        if softcap:
            scores_NS = softcap * torch.tanh(scores_NS / softcap)
        if sinks_N is not None:
            scores_NS = torch.cat((scores_NS, sinks_N[:, None]), dim=1)
        weights_NS = scores_NS.softmax(-1)[:, : len(values_SNH)]
        return torch.einsum("ns,snh->nh", weights_NS, values_SNH)

    def _gather(self, kv, batch, row, first, end):
        size = batch.block_tokens
        blocks = batch.block_tables[row, first // size : -(-end // size)].tolist()
        skipped = first // size * size
        keys = torch.cat([kv.k[block].transpose(0, 1) for block in blocks])
        values = torch.cat([kv.v[block].transpose(0, 1) for block in blocks])
        return keys[first - skipped : end - skipped], values[first - skipped : end - skipped]

    def _cells(self, batch):
        starts = batch.query_start.tolist()
        for row, context in enumerate(batch.context_tokens.tolist()):
            for position in range(context, context + starts[row + 1] - starts[row]):
                block = int(batch.block_tables[row, position // batch.block_tokens])
                yield block, position % batch.block_tokens
