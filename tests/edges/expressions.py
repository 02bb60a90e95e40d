"""Expressions that read or write by index, as people write them, by library and mode.

`x` has the shape (4, 3), `w` (4,), `v` a slice of x for each index, `u` a number for each. `i`
holds indices of the first axis, `j` one of them for each element of a slice, `k` pairs of them.
"""

from __future__ import annotations

TORCH = """
x[i]
x[i, 1]
x[i, i % 3]
x[i, i]
x[:, i]
w[i]
w[j]
x[i.to(torch.int32)]
x.index_select(0, i)
torch.index_select(x, 1, i)
torch.gather(x, 0, j)
torch.gather(x, 1, j)
x.take_along_dim(j, 0)
torch.take_along_dim(x, j, dim=0)
torch.take(x, j)
F.embedding(i, x)
F.embedding(j, x)
F.embedding(i, x, padding_idx=1)
F.embedding_bag(j, x)
F.one_hot(i, 4)[:, :3] * v
F.one_hot(i, 4).float() @ x
x.index_add(0, i, v)
x.index_add(0, i, v, alpha=2.0)
torch.index_add(w, 0, i, u)
x.index_copy(0, i, v)
x.index_fill(0, i, 2.0)
x.index_put((i,), v)
x.index_put((i,), v, accumulate=True)
x.index_put((i, i % 3), u, accumulate=True)
x.index_reduce(0, i, v, "prod")
x.index_reduce(0, i, v, "amax")
x.scatter(0, j, v)
x.scatter(0, j, 2.0)
x.scatter_add(0, j, v)
torch.scatter_add(w, 0, i, u)
x.scatter(0, j, v, reduce="add")
x.scatter_reduce(0, j, v, "sum")
x.scatter_reduce(0, j, v, "sum", include_self=False)
x.scatter_reduce(0, j, v, "mean")
x.scatter_reduce(0, j, v, "mean", include_self=False)
x.scatter_reduce(0, j, v, "amax")
x.scatter_reduce(0, j, v, "amin", include_self=False)
x.scatter_reduce(0, j, v, "prod")
torch.zeros(4, 3).index_add(0, i, v)
torch.zeros(4).scatter_add(0, i, u)
torch.zeros(4).index_add_(0, i, u)
torch.searchsorted(torch.tensor([0.0, 1.0, 2.0]), x) * x
torch.bucketize(x, torch.tensor([0.0, 1.0, 2.0])) * x
torch.bucketize(i, torch.tensor([0, 2])) * u
x.select(0, 1) * x.narrow(0, 1, 2)
put(x, i, v)
put(x, (i, i % 3), u)
add_in_place(x, i, v)
F.nll_loss(x[:, :3].repeat(n, 1)[:n], i)
F.cross_entropy(x.repeat(n + 1, 1)[:n], i)
F.nll_loss(x.repeat(n + 1, 1)[:n], i, ignore_index=-1)
"""

JAX = """
x[i]
x[i, 1]
x[i, i % 3]
x[i, i]
x[:, i]
x[i][:, None]
w[i]
w[j]
x.at[i].get()
x.at[i].get(mode="fill")
x.at[i].get(mode="drop")
x.at[i].get(mode="fill", fill_value=7.0)
x.at[i].get(mode="clip")
x.at[i].get(mode="promise_in_bounds")
x.at[i, i].get(mode="fill")
x.at[i, i].get(mode="clip")
jnp.take(x, i, axis=0)
jnp.take(x, i, axis=1)
jnp.take(x, j)
jnp.take(x, i, axis=0, mode="fill")
jnp.take(x, i, axis=0, fill_value=7.0)
jnp.take(x, i, axis=0, mode="clip")
jnp.take(x, i, axis=0, mode="wrap")
jnp.take(x, i, axis=0, mode="promise_in_bounds")
x.take(i, axis=0)
jnp.take(x.astype(jnp.int32), i, axis=0) * v
jnp.take(x > 0, i, axis=0) * v
x.astype(jnp.int32)[i] * v
jnp.take_along_axis(x, j, 0)
jnp.take_along_axis(x, j, 1)
jnp.take_along_axis(w, i, 0)
jnp.take_along_axis(x, j, 0, mode="fill")
jnp.take_along_axis(x, j, 0, mode="clip")
jnp.take_along_axis(x, j, 0, mode="promise_in_bounds")
jnp.take_along_axis(x, j, 0, fill_value=7.0)
jnp.put_along_axis(x, j, v, 0, inplace=False)
jnp.put_along_axis(x, j, 2.0, 0, inplace=False)
jnp.put_along_axis(x, j, v, 0, inplace=False, mode="clip")
jnp.put(w, i, u, inplace=False)
jnp.put(w, i, u, inplace=False, mode="clip")
jnp.put(w, i, u, inplace=False, mode="wrap")
x.at[i].set(v)
x.at[i].set(0.0)
x.at[i, 1].set(u)
x.at[i, i].set(u)
x.at[i, i].add(u)
x.at[:, i].add(w[:, None])
x.at[i].add(v)
x.at[i].add(2.0)
x.at[i].add(v, mode="drop")
x.at[i].add(v, mode="fill")
x.at[i].add(v, mode="clip")
x.at[i].add(v, mode="promise_in_bounds")
x.at[i].set(v, mode="promise_in_bounds")
x.at[i].set(v, mode="clip")
x.at[i].set(v, mode="drop")
x.at[i].add(v, indices_are_sorted=False, unique_indices=False)
x.at[i].subtract(v)
x.at[i].multiply(v)
x.at[i].mul(2.0)
x.at[i].divide(2.0)
x.at[i].power(2.0)
x.at[i].min(v)
x.at[i].max(v)
x.at[i].max(v, mode="clip")
x.at[i].max(0.5)
x.at[i].apply(jnp.sin)
jax.ops.segment_sum(v, i, 4)
jax.ops.segment_sum(u, i, 4)
jax.ops.segment_sum(v, i, num_segments=4, mode="drop")
jax.ops.segment_sum(v, i, 4, mode="clip")
jax.ops.segment_sum(v, i, 4, indices_are_sorted=False)
jax.ops.segment_sum(v, i, 0)
jax.ops.segment_prod(v, i, 4)
jax.ops.segment_max(v, i, 4)
jax.ops.segment_min(v, i, 4)
jnp.bincount(i, weights=u, length=4)
jnp.bincount(i, length=4) * w
jax.nn.one_hot(i, 4) @ x
jax.nn.one_hot(i, 3) * v
jax.nn.one_hot(i, 3, axis=0).T * v
jnp.searchsorted(jnp.array([0.0, 1.0, 2.0]), x) * x
jnp.digitize(x, jnp.array([0.0, 1.0, 2.0])) * x
jnp.choose(j, [v, 2 * v], mode="clip")
jnp.choose(j, [v, 2 * v], mode="wrap")
jnp.select([i[:, None] > 1], [v], 0.0)
jnp.zeros((4, 3)).at[i].add(v)
jnp.zeros((5, 3)).at[i].add(v)[:-1]
jax.lax.dynamic_index_in_dim(x, i.sum(), 0)
jax.lax.dynamic_slice_in_dim(x, i.sum(), 2)
jax.lax.dynamic_update_index_in_dim(x, w[:3], i.sum(), 0)
jax.lax.dynamic_slice(x, (i.sum(), 0), (2, 2))
x[i.sum()]
x.at[i.sum()].set(0.0)
x.at[i.sum()].add(w[:3])
jax.vmap(lambda a: x[a])(i)
jax.vmap(lambda a, b: x.at[a].add(b))(i, v)
"""

TENSORFLOW = """
tf.gather(x, i)
tf.gather(x, j)
tf.gather(x, i, axis=1)
tf.gather(w, i)
tf.gather(tf.stack([x, x]), tf.stack([i, i]), batch_dims=1)
tf.gather_nd(x, i[:, None])
tf.gather_nd(x, k)
tf.gather_nd(x, k, bad_indices_policy="IGNORE")
tf.gather_nd(x, k, bad_indices_policy="ERROR")
tf.nn.embedding_lookup(x, i)
tf.one_hot(i, 4) @ x
tf.one_hot(i, 3) * v
tf.one_hot(i, 3, on_value=2.0, off_value=-1.0) * v
tf.one_hot(i, 3, axis=0) * tf.transpose(v)
tf.scatter_nd(i[:, None], v, [4, 3])
tf.scatter_nd(k, u, [4, 3])
tf.scatter_nd(i[:, None], v, [4, 3], bad_indices_policy="IGNORE")
tf.tensor_scatter_nd_add(x, i[:, None], v)
tf.tensor_scatter_nd_add(x, k, u)
tf.tensor_scatter_nd_sub(x, i[:, None], v)
tf.tensor_scatter_nd_update(x, i[:, None], v)
tf.tensor_scatter_nd_update(x, k, u)
tf.tensor_scatter_nd_max(x, i[:, None], v)
tf.tensor_scatter_nd_min(x, i[:, None], v)
tf.tensor_scatter_nd_add(x, i[:, None], v, bad_indices_policy="IGNORE")
tf.math.unsorted_segment_sum(v, i, 4)
tf.math.unsorted_segment_sum(u, i, 4)
tf.math.unsorted_segment_sum(v, j, 4)
tf.math.unsorted_segment_sum(v, i, 0)
tf.math.unsorted_segment_mean(v, i, 4)
tf.math.unsorted_segment_max(v, i, 4)
tf.math.unsorted_segment_min(v, i, 4)
tf.math.unsorted_segment_prod(v, i, 4)
tf.math.unsorted_segment_sqrt_n(v, i, 4)
tf.math.bincount(i, u, minlength=4, maxlength=4)
tf.searchsorted(tf.constant([0.0, 1.0, 2.0]), w)
tf.cast(tf.searchsorted(tf.constant([0.0, 1.0, 2.0]), w), tf.float32) * w
x[tf.reduce_sum(i)]
tf.nn.sparse_softmax_cross_entropy_with_logits(i, tf.tile(x, [n + 1, 1])[:n])
tf.experimental.numpy.take(x, i, axis=0)
tf.experimental.numpy.take_along_axis(x, j, 0)
tf.dynamic_stitch([i], [v])
"""

NUMPY = """
x[i]
x[i, 1]
x[i, i % 3]
x[i, i]
x[:, i]
w[j]
np.take(x, i, axis=0)
np.take(x, i, axis=1)
np.take(x, j)
np.take(x, i, axis=0, mode="clip")
np.take(x, i, axis=0, mode="wrap")
np.take(x, i, axis=0, mode="raise")
x.take(i, axis=0)
x.take(i, axis=0, mode="clip")
np.take_along_axis(x, j, 0)
np.take_along_axis(x, j, 1)
np.choose(j, [v, 2 * v], mode="clip")
np.choose(j, [v, 2 * v], mode="wrap")
np.choose(j, [v, 2 * v])
np.searchsorted(np.array([0.0, 1.0, 2.0]), w) * w
np.digitize(x, np.array([0.0, 1.0, 2.0])) * x
put(x, i, v)
put(x, (i, i % 3), u)
add_in_place(x, i, v)
put_along(x, j, v)
put_flat(w, i, u)
put_flat(w, i, u, "clip")
put_flat(w, i, u, "wrap")
add_at(x, i, v)
"""

KERAS = """
ops.take(x, i, axis=0)
ops.take(x, j)
ops.take_along_axis(x, j, axis=0)
ops.one_hot(i, 4) @ x
ops.one_hot(i, 3) * v
ops.segment_sum(v, i, num_segments=4)
ops.segment_max(v, i, num_segments=4)
ops.scatter(i[:, None], v, (4, 3))
ops.scatter_update(x, i[:, None], v)
ops.scatter_update(x, k, u)
ops.searchsorted(ops.convert_to_tensor([0.0, 1.0, 2.0]), w)
ops.digitize(w, ops.convert_to_tensor([0.0, 1.0, 2.0]))
ops.slice(x, (1, 0), (2, 3))
ops.get_item(x, i)
"""

# What writes in place, as functions of copies.
HELPERS = """
def put(x, i, v):
    y = x.clone() if hasattr(x, "clone") else x.copy()
    y[i] = v
    return y


def add_in_place(x, i, v):
    y = x.clone() if hasattr(x, "clone") else x.copy()
    y[i] += v
    return y


def put_along(x, j, v):
    y = x.copy()
    np.put_along_axis(y, j, v, 0)
    return y


def put_flat(x, i, v, mode="raise"):
    y = x.copy()
    np.put(y, i, v, mode)
    return y


def add_at(x, i, v):
    y = x.copy()
    np.add.at(y, i, v)
    return y

"""

EXPRESSIONS = {
    "numpy": NUMPY, "torch": TORCH, "jax": JAX, "tensorflow": TENSORFLOW, "keras": KERAS,
}  # fmt: skip
