# pyright: reportGeneralTypeIssues=false, reportCallIssue=false, reportArgumentType=false
"""Triton kernels of `fused_matching`.

Triton compiles the source of these functions and has its own types. A row contains the features of the first layer, its
scores, the features of the second layer and so on. `ends` are the steps, of `tile_l` channels each, at which these
parts end. `is_product` means that features and scores are multiplied layer by layer; otherwise, everything is one inner
product.
"""

import triton
import triton.language as tl

COUNTS = ["num_centers", "num_images", "num_all", "first_image", "num_groups", "blocks_k", "blocks_n"]
"""Arguments whose values must not trigger another compilation."""


@triton.jit
def weigh(similarity, probability, full, doubtful, largest, last):
    """Returns the result of `matching.weigh`, with 1 / FULL and 1 / largest as arguments."""
    weighed = similarity * tl.minimum(probability * full, 1.0)
    is_plausible = (probability >= doubtful) & (similarity > 0)
    return tl.where(is_plausible, weighed, (similarity * largest - 3.0) * last)


@triton.jit(do_not_specialize=COUNTS)
def keep_largest(
    centers,
    pool,
    posterior,
    classes,
    full,
    doubtful,
    largest,
    last,
    maxima,
    num_centers,
    num_images,
    num_all,
    first_image,
    num_groups,
    blocks_k,
    blocks_n,
    ends: tl.constexpr,
    is_product: tl.constexpr,
    is_weighed: tl.constexpr,
    tile_k: tl.constexpr,
    tile_n: tl.constexpr,
    tile_l: tl.constexpr,
    group_size: tl.constexpr,
    side: tl.constexpr,
):
    """Writes the largest similarity of each center in each group of images.

    A single loop covers the steps of all tiles of a program, so that the next tile is loaded while one is completed.
    """
    steps: tl.constexpr = ends[len(ends) - 1]
    groups: tl.constexpr = tile_n // group_size
    count = (blocks_k * blocks_n - tl.program_id(0) + tl.num_programs(0) - 1) // tl.num_programs(0)
    product = tl.zeros((tile_k, tile_n), tl.float32)
    held = tl.zeros((tile_k, tile_n), tl.float32)
    similarity = tl.zeros((tile_k, tile_n), tl.float32)
    step, tile = -1, tl.program_id(0) - tl.num_programs(0)
    block_k, block_n = 0, 0
    for _ in range(count * steps):
        step = tl.where(step == steps - 1, 0, step + 1)
        if step == 0:
            # A few blocks of centers pass over all images together, so that both are read from the cache.
            tile += tl.num_programs(0)
            first = tile // (side * blocks_n) * side
            num_side = tl.minimum(blocks_k - first, side)
            block_k = first + tile % (side * blocks_n) % num_side
            block_n = tile % (side * blocks_n) // num_side
        rows_k = centers.load([block_k * tile_k, step * tile_l])
        rows_n = pool.load([block_n * tile_n, step * tile_l])
        product = tl.dot(rows_k, rows_n.T, product)
        is_end, is_second = False, False
        for part in tl.static_range(len(ends)):
            is_end = is_end | (step == ends[part] - 1)
            if part % 2 == 1:
                is_second = is_second | (step == ends[part] - 1)
        # The multiplications overlap only with a single branch and no other use of the product.
        if is_end:
            if is_product:
                similarity += held * product  # `held` is zero after the features
                held = tl.where(is_second, 0.0, product)
            else:
                similarity += product
            product = tl.zeros((tile_k, tile_n), tl.float32)
        if step == steps - 1:
            center = block_k * tile_k + tl.arange(0, tile_k)
            image = block_n * tile_n + tl.arange(0, tile_n)
            is_image = image < num_images
            if is_weighed:
                of_class = tl.load(classes + center, mask=center < num_centers, other=0).to(tl.int64)[:, None]
                at = of_class * num_all + first_image + image[None, :]
                probability = tl.load(posterior + at, mask=is_image[None, :], other=0.0)
                similarity = weigh(similarity, probability, full, doubtful, largest, last)
            similarity = tl.where(is_image[None, :], similarity, -float("inf"))
            found = tl.max(tl.reshape(similarity, (tile_k, groups, group_size)), axis=2)
            group = block_n * groups + tl.arange(0, groups)
            at = center.to(tl.int64)[:, None] * num_groups + group[None, :]
            tl.store(maxima + at, found, mask=(center < num_centers)[:, None] & (group < num_groups)[None, :])
            similarity = tl.zeros((tile_k, tile_n), tl.float32)


@triton.jit(do_not_specialize=["num_images", "num_groups"])
def look_into_groups(
    centers,
    pool,
    posterior,
    classes,
    full,
    doubtful,
    largest,
    last,
    groups,
    is_wanted,
    found,
    num_images,
    num_groups,
    ends: tl.constexpr,
    is_product: tl.constexpr,
    is_weighed: tl.constexpr,
    tile_l: tl.constexpr,
    group_size: tl.constexpr,
):
    """Writes the similarities of one center to the images of one of its groups, if the group is wanted."""
    width: tl.constexpr = ends[len(ends) - 1] * tile_l
    center, place = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(is_wanted + center * num_groups + place) == 0:
        return
    rows = tl.load(groups + center * num_groups + place).to(tl.int64) * group_size + tl.arange(0, group_size)
    is_image = rows < num_images
    safe = tl.where(is_image, rows, 0)
    similarity = tl.zeros((group_size,), tl.float32)
    held = tl.zeros((group_size,), tl.float32)
    begin = 0
    for part in tl.static_range(len(ends)):
        products = tl.zeros((group_size, tile_l), tl.float32)
        for step in range(begin, ends[part]):
            channels = step * tile_l + tl.arange(0, tile_l)
            of_center = tl.load(centers + center * width + channels).to(tl.float32)
            of_images = tl.load(pool + safe[:, None] * width + channels[None, :]).to(tl.float32)
            products += of_images * of_center[None, :]
        begin = ends[part]
        product = tl.sum(products, axis=1)
        if not is_product:
            similarity += product
        elif part % 2 == 0:
            held = product
        else:
            similarity += held * product
    if is_weighed:
        of_class = tl.load(classes + center).to(tl.int64)
        probability = tl.load(posterior + of_class * num_images + safe)
        similarity = weigh(similarity, probability, full, doubtful, largest, last)
    similarity = tl.where(is_image, similarity, -float("inf"))
    tl.store(found + (center * num_groups + place) * group_size + tl.arange(0, group_size), similarity)
