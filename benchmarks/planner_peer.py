"""The tiny planner's decoder and its training step in PyTorch, of the same sizes and batches."""

from typing import Any

import numpy as np

from jaxagent.agents.planner import ImitationConfig, TokenBatch
from jaxagent.models.llm.config import LlamaConfig


class TorchPlanner:
    """Trains on the same packed batches: eager PyTorch, fused attention, its own Muon and AdamW.

    Args (of the constructor):
        model: sizes.
        config: of the optimiser.
        threads: of PyTorch.

    Raises:
        ImportError: PyTorch is not installed.
    """

    def __init__(self, model: LlamaConfig, config: ImitationConfig, threads: int) -> None:
        import torch  # pyright: ignore[reportMissingImports]

        torch.set_num_threads(threads)
        torch.manual_seed(0)
        self.torch, self.model, self.config = torch, model, config
        size, inner = model.hidden_size, model.intermediate_size

        def matrix(rows: int, columns: int) -> Any:
            values = model.initializer_range * torch.randn(rows, columns)
            return values.requires_grad_()

        def scale() -> Any:
            return torch.ones(size, requires_grad=True)

        self.embedding = matrix(model.vocab_size, size)
        self.layers = [
            {
                **{name: matrix(size, size) for name in ("query", "key", "value", "output")},
                "gate": matrix(inner, size),
                "up": matrix(inner, size),
                "down": matrix(size, inner),
                "attention_norm": scale(),
                "mlp_norm": scale(),
                "query_norm": torch.ones(model.head_dim, requires_grad=True),
                "key_norm": torch.ones(model.head_dim, requires_grad=True),
            }
            for _ in range(model.num_layers)
        ]
        self.final_norm = scale()
        self.parameters = [self.embedding, self.final_norm]
        self.parameters += [x for layer in self.layers for x in layer.values()]
        by_muon = [
            x
            for layer in self.layers
            for x in layer.values()
            if config.optimizer == "muon" and x.ndim == 2
        ]
        chosen = set(map(id, by_muon))
        rest = [x for x in self.parameters if id(x) not in chosen]
        decay = config.weight_decay
        self.optimizers: list[Any] = [
            torch.optim.AdamW(
                rest, lr=config.learning_rate, betas=(0.9, 0.99), weight_decay=decay, fused=True
            )
        ]
        if by_muon:
            self.optimizers.append(
                torch.optim.Muon(
                    by_muon,
                    lr=5 * config.learning_rate,
                    weight_decay=decay,
                    adjust_lr_fn="match_rms_adamw",
                )
            )

    def update(self, batch: TokenBatch) -> float:
        """One step of the optimiser; the loss."""
        torch = self.torch
        as_tensor = torch.as_tensor
        hidden = self._hidden(*(as_tensor(np.asarray(x)).long() for x in batch[:3]))
        place = as_tensor(batch.target_position).long()[..., None].expand(-1, -1, hidden.shape[-1])
        logits = hidden.gather(1, place) @ self.embedding.T
        live = as_tensor(batch.target_mask)
        loss = torch.nn.functional.cross_entropy(
            logits[live], as_tensor(batch.target).long()[live], reduction="mean"
        )
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, self.config.max_gradient_norm)
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    def _hidden(self, tokens: Any, positions: Any, segments: Any) -> Any:
        torch, model = self.torch, self.model
        rows, length = tokens.shape
        half = model.head_dim // 2
        frequencies = model.rope_theta ** (-torch.arange(half) / half)
        angles = positions[:, None, :, None] * frequencies
        cos, sin = angles.cos(), angles.sin()
        index = torch.arange(length)
        seen = (segments[:, :, None] == segments[:, None, :]) & (index[:, None] >= index)

        def heads(x: Any) -> Any:
            return x.view(rows, length, model.num_heads, model.head_dim).transpose(1, 2)

        def turned(x: Any) -> Any:
            first, second = x.chunk(2, -1)
            return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

        def normed(x: Any, scale: Any) -> Any:
            return torch.nn.functional.rms_norm(x, (x.shape[-1],), scale, model.norm_epsilon)

        x = torch.nn.functional.embedding(tokens, self.embedding)
        for layer in self.layers:
            h = normed(x, layer["attention_norm"])
            query, key, value = (heads(h @ layer[name].T) for name in ("query", "key", "value"))
            if model.qk_norm:
                query, key = normed(query, layer["query_norm"]), normed(key, layer["key_norm"])
            mixed = torch.nn.functional.scaled_dot_product_attention(
                turned(query), turned(key), value, attn_mask=seen[:, None]
            )
            x = x + mixed.transpose(1, 2).reshape(rows, length, -1) @ layer["output"].T
            h = normed(x, layer["mlp_norm"])
            inner = torch.nn.functional.silu(h @ layer["gate"].T) * (h @ layer["up"].T)
            x = x + inner @ layer["down"].T
        return normed(x, self.final_norm)
