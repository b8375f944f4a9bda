"""Wrong solutions of every exercise, each with words that the check must say about it.

Each entry is the source of a solution. np, jax, jnp, pl are there, and what its exercise's module has.
"""

MISTAKES = {
    "layer_flops": {
        "lambda batch, inputs, outputs: batch * inputs * outputs + 2 * batch * outputs":
            "multiply-add is two",
        "lambda batch, inputs, outputs: 2 * batch * inputs * outputs": "relu are operators too",
        "lambda batch, inputs, outputs: 2 * batch * inputs * outputs + batch * outputs": "one of three",
        "lambda batch, inputs, outputs: None": "fill the hole",
        "lambda batch, inputs: 3": "TypeError",
        "42": "got int",
    },
    "two_become_one": {
        "lambda x: jnp.exp(x)": "1 equation `exp`",
        "lambda x: jnp.exp(x) + jnp.exp(jnp.sin(x))": "compute different things",
        "lambda x: 0 * x + (jnp.exp(x), jnp.exp(x))[0].size": "no `exponential` is left",
        "lambda x: x": "0 equations `exp`",
    },
    "bytes_of_fusion": {
        "lambda n: (6 * n, 2 * n)": "a float32 has four",
        "lambda n: (12 * n, 8 * n)": "Each kernel reads as much as it writes",
        "lambda n: (24 * n, 24 * n)": "for one kernel",
        "lambda n: (..., ...)": "expected two numbers",
    },
    "relu_rule": {
        "lambda x: jnp.maximum(x, 0)": "derivative at 0 is 0.5",
        "lambda x: jnp.where(x > 0, x, 0)": "NaN stays NaN",
        "jax.nn.relu6": "expected",
        "lambda x: jnp.where(x < 0, 0, x)": "derivative at 0 is 1",
        "custom(lambda x, dx: dx * (x > 0))": "choose instead of multiplying",
        "custom(lambda x, dx: ...)": "it raises",
    },
    "safe_softmax": {
        "lambda x: jnp.exp(x) / jnp.exp(x).sum(-1, keepdims=True)": "exp overflowed",
        "lambda x: jax.nn.softmax(x, axis=0)": "off by",
        "lambda x: jax.nn.softmax(x.astype(jnp.float32))": "must have the dtype of x",
        "lambda x: (lambda e: e / e.sum(-1, keepdims=True))(jnp.exp(x - x.max(-1, keepdims=True)))":
            "cannot hold it",
        "lambda x: jax.nn.softmax(x)[0]": "shape",
    },
    "batching_rule": {
        "lambda x, where, axis: (reverse(x, axis), where)": "the wrong axis",
        "lambda x, where, axis: (reverse(x, axis + 1), where)": "the wrong axis",
        "lambda x, where, axis: (reverse(x, axis + 1 if axis >= where else axis), 0)":
            "say where the batch stands",
        "lambda x, where, axis: reverse(x, axis)": "it raises",
    },
    "missing_rule": {
        "lambda a: jnp.abs(jnp.linalg.eigvals(a)).max()": "has no rule on",
        "lambda a: jnp.linalg.eigvalsh(a).max()": "expected",
        "lambda a: jnp.abs(jnp.linalg.eigvalsh(a))": "it raises",
        "lambda a: jnp.abs(a).max()": "expected",
    },
    "one_kernel": {
        "lambda x: jnp.tanh(jax.lax.map(lambda r: 2 * r + 1, x))": "kernels",
        "lambda x: jax.lax.map(lambda r: jnp.tanh(2 * r + 1), x)": "kernels",
        "lambda x: jnp.tanh(2 * x) + 1": "not those of tanh",
        "lambda x: jax.lax.map(jnp.tanh, jax.lax.map(lambda r: 2 * r + 1, x))": "kernels",
        "lambda x: jnp.tanh(2 * x + 1)[:1]": "not those of tanh",
    },
    "no_table": {
        "lambda q, k, v: jax.nn.softmax(q @ k.T) @ v": "dot_general",
        "lambda q, k, v: jax.lax.map(lambda r: jax.nn.softmax(r @ k.T)"
        " @ v, q.reshape(2, -1, 16)).reshape(q.shape)":
            "still grows",
        "lambda q, k, v: jax.nn.softmax(q @ k.T / 4) @ v": "not those of softmax",
        "lambda q, k, v: jnp.zeros_like(q)": "not those of softmax",
    },
    "in_place": {
        "jax.jit(lambda w, g: {n: w[n] - 0.1 * g[n] for n in w})": "are used again",
        "jax.jit(lambda w, g: {n: w[n] - 0.1 * g[n] for n in w}, donate_argnums=1)":
            "gives away the gradients",
        "jax.jit(lambda w, g: {n: w[n] - 0.2 * g[n] for n in w}, donate_argnums=0)": "not those of weights",
        "lambda w, g: {n: w[n] - 0.1 * g[n] for n in w}": "are used again",
    },
    "compiled_once": {
        "lambda x, n: jnp.prod(jnp.stack([x for _ in range(n)]), 0)": "only known when the program runs",
        "lambda x, n: x ** n": "no loop",
        "lambda x, n: jax.lax.fori_loop(0, n, lambda _, r: r * x, x)": "expected",
        "lambda x, n: jax.lax.fori_loop(1, n, lambda _, r: r * x, jnp.ones_like(x))": "expected",
    },
    "tile_transpose": {
        "tiles(lambda i, j: (i, j))": "out of range",
        "tiles(lambda i, j: (128 * j, 128 * i))": "element offsets",
        "tiles(lambda i, j: (0, 0))": "wrong block",
        "lambda x: x.T": "no pallas_call",
    },
    "ragged_sum": {
        "sums(lambda x, i, n: x)": "have, and what stands there was added",
        "sums(lambda x, i, n: jnp.nan_to_num(x) * (column(i) < n - 1))": "expected",
        "sums(lambda x, i, n: jnp.where(column(i) <= n, x, 0))": "NaN",
        "lambda x: x.sum(1, keepdims=True)": "no pallas_call",
    },
    "accumulate": {
        "product(lambda x, y, o: o.__setitem__(..., x[...] @ y[...]))": "written twice",
        "product(lambda x, y, o: o.__setitem__(..., o[...] + x[...] @ y[...]))": "read before written",
        "lambda x, y: x @ y": "no pallas_call",
        "product(lambda x, y, o: None)": "never written",
    },
    "tile_traffic": {
        "lambda m, k, n, tile: 4 * (m * k + k * n + m * n)": "each array once",
        "lambda m, k, n, tile: 4 * (m * k * (n // tile) + k * n * (m // tile) + m * n * (k // tile))":
            "not written at every step",
        "lambda m, k, n, tile: m * k * (n // tile) + k * n * (m // tile) + m * n": "those are numbers",
        "lambda m, k, n, tile: None": "fill the hole",
    },
    "merge_softmax": {
        "lambda a, b: (jnp.maximum(a[0], b[0]), a[1] + b[1], a[2] + b[2])": "expected",
        "lambda a, b: (a[0] + b[0], a[1] + b[1], a[2] + b[2])": "m is",
        "lambda a, b: (lambda m: (m, *(a[i] * jnp.exp(a[0] - m) + b[i] * jnp.exp(b[0] - m) for i in (1, 2))))"
        "(jnp.maximum(a[0], b[0]))": "two empty halves",
        "lambda a, b: (jnp.maximum(a[0], b[0]), *(a[i] * jnp.exp(b[0]) + b[i] for i in (1, 2)))": "expected",
    },
}
