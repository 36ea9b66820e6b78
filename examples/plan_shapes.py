"""What hopgemm would run on an H200 for a model's layers; needs no GPU and no framework.

python examples/plan_shapes.py
"""

import hopgemm

if __name__ == "__main__":
    for m, n, k in ((8192, 8192, 8192), (16, 4096, 14336), (8192, 50257, 768)):
        print(f"{m} x {n} x {k}")
        print(hopgemm.plan(m=m, n=n, k=k, dtype="bfloat16", majors="kk"))
        print()
    # Leave 32 SMs to a communication kernel, for everything in the block.
    with hopgemm.sm_limit(100):
        print("at most 100 SMs:", hopgemm.plan(m=8192, n=8192, k=8192).grid, "CTAs")
