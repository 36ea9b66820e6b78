"""A linear layer trained for a few steps on hopgemm.matmul, beside the same layer on torch.mm.

    python examples/torch_linear.py

Uses the GPU if there is one; on the CPU hopgemm computes by PyTorch's own product in float32.
"""

import torch

import hopgemm


def train(product, steps=20):
    """The losses of `steps` steps of gradient descent on y = x @ w.T."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator().manual_seed(0)
    x, target, w = (torch.randn(n, m, generator=generator) for n, m in ((256, 512), (256, 128), (128, 512)))
    x, target = x.to(device, torch.bfloat16), target.to(device)
    w = (w / 512**0.5).to(device, torch.bfloat16).requires_grad_()  # (N, K), as torch.nn.Linear keeps it
    losses = []
    for _ in range(steps):
        loss = (product(x, w.T).float() - target).square().mean()
        loss.backward()
        with torch.no_grad():
            w -= 10 * w.grad
            w.grad = None
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    ours, theirs = train(hopgemm.matmul), train(torch.mm)
    for step in (0, 9, 19):
        print(f"step {step:2}: loss {ours[step]:.4f} with hopgemm, {theirs[step]:.4f} with torch.mm")
