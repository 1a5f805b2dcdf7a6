# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
"""Device code of `fused`: what one program of the GPU does.

Triton reads the source of these functions, and types are its own. `kind` is 0 for the product of features and scores, 1
for the sum, 2 for features alone. Weighing stands here twice: a function called from a kernel is lost on the
interpreter when the tests check types.
"""

import triton
import triton.language as tl


@triton.jit
def keep_best_groups(
    z_k,
    g_k,
    z_n,
    g_n,
    posterior,
    classes,
    full,
    doubtful,
    largest,
    last,
    value,
    group,
    num_centers,
    num_images,
    chunk_size,
    blocks,
    widths: tl.constexpr,
    total: tl.constexpr,
    kind: tl.constexpr,
    is_weighed: tl.constexpr,
    tile_k: tl.constexpr,
    tile_n: tl.constexpr,
    tile_l: tl.constexpr,
    group_size: tl.constexpr,
    kept: tl.constexpr,
):
    """One program: the best groups of `tile_k` centers in one chunk of the pool."""
    # Blocks of centers first: programs that run side by side then read the same images.
    block, chunk = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    rows_k = block * tile_k + tl.arange(0, tile_k)
    is_center = rows_k < num_centers
    safe_k = tl.where(is_center, rows_k, 0).to(tl.int64)
    slots, places = tl.arange(0, kept), tl.arange(0, tile_n // group_size)
    top_value = tl.full((tile_k, kept), -float("inf"), tl.float32)
    top_group = tl.zeros((tile_k, kept), tl.int32)
    first = chunk * chunk_size
    for start in range(first, tl.minimum(first + chunk_size, num_images), tile_n):
        rows_n = start + tl.arange(0, tile_n)
        is_image = rows_n < num_images
        safe_n = tl.where(is_image, rows_n, 0).to(tl.int64)
        similarity = tl.zeros((tile_k, tile_n), tl.float32)
        begin = 0
        for layer in tl.static_range(len(widths)):
            product_z = tl.zeros((tile_k, tile_n), tl.float32)
            product_g = tl.zeros((tile_k, tile_n), tl.float32)
            for offset in range(0, widths[layer], tile_l):
                channels = begin + offset + tl.arange(0, tile_l)
                at_k = safe_k[:, None] * total + channels[None, :]
                at_n = safe_n[None, :] * total + channels[:, None]
                product_z = tl.dot(tl.load(z_k + at_k), tl.load(z_n + at_n), product_z)
                if kind != 2:
                    product_g = tl.dot(tl.load(g_k + at_k), tl.load(g_n + at_n), product_g)
            if kind == 0:
                similarity += product_z * product_g
            else:
                similarity += product_z + product_g
            begin += widths[layer]
        if is_weighed:
            of_class = tl.load(classes + safe_k).to(tl.int64)[:, None]
            chance = tl.load(posterior + of_class * num_images + safe_n[None, :])
            weighed = similarity * tl.minimum(chance * full, 1.0)
            is_plausible = (chance >= doubtful) & (similarity > 0)
            similarity = tl.where(is_plausible, weighed, (similarity * largest - 3.0) * last)
        similarity = tl.where(is_image[None, :], similarity, -float("inf"))
        largest_of = tl.max(tl.reshape(similarity, (tile_k, tile_n // group_size, group_size)), axis=2)
        for place in tl.static_range(tile_n // group_size):
            new = tl.max(tl.where((places == place)[None, :], largest_of, -float("inf")), axis=1)
            lowest, worst = tl.min(top_value, axis=1, return_indices=True)
            is_replaced = (new > lowest)[:, None] & (slots[None, :] == worst[:, None])
            top_value = tl.where(is_replaced, new[:, None], top_value)
            top_group = tl.where(is_replaced, start // group_size + place, top_group)
    at = (chunk * num_centers + safe_k)[:, None] * kept + slots[None, :]
    tl.store(value + at, top_value, mask=is_center[:, None])
    tl.store(group + at, top_group, mask=is_center[:, None])


@triton.jit
def look_into_groups(
    z_k,
    g_k,
    z_n,
    g_n,
    posterior,
    classes,
    full,
    doubtful,
    largest,
    last,
    groups,
    found,
    num_images,
    num_groups,
    widths: tl.constexpr,
    total: tl.constexpr,
    kind: tl.constexpr,
    is_weighed: tl.constexpr,
    tile_l: tl.constexpr,
    group_size: tl.constexpr,
):
    """One program: one center and the images of one of its groups."""
    center, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tl.load(groups + center * num_groups + place).to(tl.int64) * group_size + tl.arange(0, group_size)
    is_image = rows < num_images
    safe = tl.where(is_image, rows, 0)
    similarity = tl.zeros((group_size,), tl.float32)
    begin = 0
    for layer in tl.static_range(len(widths)):
        product_z = tl.zeros((group_size, tile_l), tl.float32)
        product_g = tl.zeros((group_size, tile_l), tl.float32)
        for offset in range(0, widths[layer], tile_l):
            channels = begin + offset + tl.arange(0, tile_l)
            at_k = center * total + channels
            at_n = safe[:, None] * total + channels[None, :]
            product_z += tl.load(z_n + at_n).to(tl.float32) * tl.load(z_k + at_k).to(tl.float32)[None, :]
            if kind != 2:
                product_g += tl.load(g_n + at_n).to(tl.float32) * tl.load(g_k + at_k).to(tl.float32)[None, :]
        if kind == 0:
            similarity += tl.sum(product_z, axis=1) * tl.sum(product_g, axis=1)
        else:
            similarity += tl.sum(product_z, axis=1) + tl.sum(product_g, axis=1)
        begin += widths[layer]
    if is_weighed:
        of_class = tl.load(classes + center).to(tl.int64)
        chance = tl.load(posterior + of_class * num_images + safe)
        weighed = similarity * tl.minimum(chance * full, 1.0)
        is_plausible = (chance >= doubtful) & (similarity > 0)
        similarity = tl.where(is_plausible, weighed, (similarity * largest - 3.0) * last)
    similarity = tl.where(is_image, similarity, -float("inf"))
    tl.store(found + (center * num_groups + place) * group_size + tl.arange(0, group_size), similarity)
