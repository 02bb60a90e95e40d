"""Attributes of `torch.Tensor` that no symbol answers, and why."""

from __future__ import annotations

from multigrad.capture.values.attributes import (
    COMPLEX,
    INDICES,
    MEMORY,
    NUMBERS,
    PARTS,
    PRIVATE,
    VALUES,
    refusals,
)

AUTOGRAD = "which is autograd's; a rule's tensors carry no gradient of their own"
QUANTIZED = "which is of quantized tensors"
SPARSE = "which is of sparse tensors"
DRAWS = "which draws from a distribution that is not captured; use xp.rand_like or xp.randn_like"
INTEGERS = "which casts to or computes in integers in a way not captured"

REASONS = {
    PRIVATE: """
        _* __div__ __idiv__ __rdiv__ __long__ __nonzero__ __torch_dispatch__ reinforce volatile
        module_load const_data_ptr
    """,
    INDICES: """
        bincount histc histogram index_reduce index_reduce_ mode slice_inverse
    """,
    VALUES: """
        argwhere is_nonzero masked_scatter_ nonzero nonzero_static unique
        unique_consecutive hash_tensor
    """,
    PARTS: "as_strided* resize resize_ resize_as resize_as_",
    COMPLEX: """
        cdouble cfloat chalf imag istft stft
    """,
    INTEGERS: "gcd gcd_ int_repr lcm lcm_ random_",
    MEMORY: """
        as_subclass cpu cuda data_ptr dim_order element_size get_device ipu is_contiguous is_cpu
        is_cuda is_distributed is_ipu is_maia is_meta is_mkldnn is_mps is_mtia is_pinned
        is_same_size is_set_to is_shared is_vulkan is_xla is_xpu itemsize layout mtia name names
        rename rename_ align_* has_names refine_names nbytes ndimension nelement new
        new_empty_strided pin_memory record_stream set_ share_memory_ storage storage_* stride
        to_mkldnn untyped_storage xpu hpu is_hpu is_maia
    """,
    AUTOGRAD: """
        grad grad_dtype grad_fn is_inference is_leaf output_nr register_* requires_grad retain_grad
        retains_grad
    """,
    QUANTIZED: "dequantize is_quantized q_* qscheme is_signed",
    SPARSE: """
        ccol_indices coalesce col_indices crow_indices dense_dim indices is_coalesced is_nested
        is_sparse is_sparse_csr resize_as_sparse_ row_indices sparse_* to_dense to_padded_tensor
        to_sparse to_sparse_* values
    """,
    DRAWS: "cauchy_ exponential_ geometric_ log_normal_ multinomial",
    NUMBERS: "apply_ map_ map2_",
}
REFUSALS = refusals(REASONS)
