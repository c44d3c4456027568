"""What the figures compute in a browser, against the NumPy half of the package."""

import base64

import numpy as np
import pytest
import torch

from attnconv import data, figures, reference, theory
from attnconv.nn import (
    AttentionClassifier,
    LearnedAttention2d,
    QuadraticAttention2d,
    RelativeAttention2d,
    ResNet18,
    conv_to_attention,
    cost,
)
from attnconv.shifts import kernel_shifts, pixel_grid, relative_shifts, shift_image

pytestmark = [pytest.mark.browser, pytest.mark.filterwarnings("ignore::ResourceWarning")]
IMAGES = [(1, 1, 1), (1, 5, 3), (4, 3, 1), (6, 7, 3)]


@pytest.fixture(scope="module")
def javascript(browser):
    """Call an exported function of a figure: javascript(module, expression in `f`, arguments as `a`)."""
    page = browser.new_page()

    def call(module, expression, argument):
        source = base64.b64encode(figures.module_source(module).encode()).decode()
        return page.evaluate(
            "async ([source, a]) => { const f = await import(`data:text/javascript;base64,${source}`); "
            f"return ({expression}); }}",
            [source, argument],
        )

    yield call
    page.close()


def as_image(image):
    height, width, channels = image.shape
    return {"height": height, "width": width, "channels": channels, "data": image.ravel().tolist()}


@pytest.mark.parametrize("shape", IMAGES)
def test_sum_of_shifts_computes_the_partial_sums(javascript, shape):
    rng = np.random.default_rng(shape)
    image, weights, shifts = rng.random(shape), rng.normal(size=9), kernel_shifts(3)
    for count in (0, 1, 5, 9):
        argument = [as_image(image), shifts.tolist(), weights.tolist(), count]
        ours = javascript("sum_of_shifts", "Array.from(f.partialSum(...a).data)", argument)
        expected = sum(
            (w * shift_image(image, d) for w, d in zip(weights[:count], shifts, strict=False)), 0 * image
        )
        np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)
    for shift in ((0, 0), (-1, 2), (9, 0)):
        ours = javascript("sum_of_shifts", "Array.from(f.shiftImage(...a).data)", [as_image(image), shift])
        assert np.array_equal(ours, shift_image(image, shift).ravel())


@pytest.mark.parametrize("shape", IMAGES)
@pytest.mark.parametrize("alpha", [0.05, 1.0, 40.0])
def test_nine_heads_computes_self_attention(javascript, shape, alpha):
    rng = np.random.default_rng(shape)
    image, weights = rng.random(shape), rng.normal(size=9)
    height, width, channels = shape
    scores = [reference.quadratic_scores(relative_shifts(height, width), d, alpha) for d in kernel_shifts(3)]
    values = np.broadcast_to(np.eye(channels), (9, channels, channels))
    expected = reference.mhsa(
        np.stack(scores), image.reshape(-1, channels), values, np.kron(weights, np.eye(channels)).T
    )
    ours = javascript(
        "nine_heads", "Array.from(f.nineHeads(...a).data)", [as_image(image), weights.tolist(), alpha]
    )
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-9)  # the page drops weights below 1e-12


@pytest.mark.parametrize("shape", IMAGES)
def test_nine_heads_computes_the_convolution(javascript, shape):
    rng = np.random.default_rng(shape)
    image, weights = rng.random(shape), rng.normal(size=9)
    kernel = weights.reshape(3, 3, 1, 1) * np.eye(shape[2])
    ours = javascript("nine_heads", "Array.from(f.convolve(...a).data)", [as_image(image), weights.tolist()])
    expected = reference.convolution(image, kernel, padding="replicate")
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)


def test_shuffled_pixels_computes_the_layer(javascript):
    rng = np.random.default_rng(2)
    tokens, out, bias = rng.normal(size=(20, 5)), rng.normal(size=(18, 3)), rng.normal(size=3)
    (qry, key), val = rng.normal(size=(2, 3, 5, 4)), rng.normal(size=(3, 5, 6))
    weights = {
        "qry": qry.tolist(),
        "key": key.tolist(),
        "val": val.tolist(),
        "out": out.tolist(),
        "bias": bias.tolist(),
    }
    for factor in (0.0, 1.0, 2.5):
        scores = [reference.content_scores(tokens, q, k, scale=factor) for q, k in zip(qry, key, strict=True)]
        expected = reference.mhsa(np.stack(scores), tokens, val, out, bias)
        ours = javascript("shuffled_pixels", "f.attentionLayer(...a)", [tokens.tolist(), weights, factor])
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11)
        argument = [(tokens @ qry[0])[7].tolist(), (tokens @ key[0]).tolist(), factor]
        row = javascript("shuffled_pixels", "f.scoresOf(...a)", argument)
        np.testing.assert_allclose(row, scores[0][7], rtol=0, atol=1e-11)


def test_shuffled_pixels_blurs_and_shuffles(javascript):
    image = np.random.default_rng(3).random((5, 4, 3))
    blur = np.full((3, 3, 1, 1), 1 / 9) * np.eye(3)
    ours = javascript("shuffled_pixels", "Array.from(f.blur(a).data)", as_image(image))
    np.testing.assert_allclose(
        ours, reference.convolution(image, blur, padding="replicate").ravel(), rtol=0, atol=1e-12
    )
    order = javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 1])
    assert sorted(order) == list(range(256))
    assert order == javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 1])
    assert order != javascript("shuffled_pixels", "f.shuffledOrder(...a)", [256, 2])
    rows = np.arange(512).reshape(256, 2)
    moved = javascript("shuffled_pixels", "f.reorder(...a)", [rows.tolist(), order])
    assert np.array_equal(moved, rows[order])
    assert np.array_equal(javascript("shuffled_pixels", "f.putBack(...a)", [moved, order]), rows)


def test_translated_picture_computes_both_layers(javascript):
    rng = np.random.default_rng(4)
    height, width, in_channels, key_dim, position_dim = 4, 5, 6, 7, 3
    image = rng.integers(0, 256, size=(height, width, 3)) / 255
    lift = rng.normal(size=(3, in_channels))
    w_qry, w_key = rng.normal(size=(2, in_channels, key_dim))
    shifts = relative_shifts(height, width, circular=True)
    relative = {
        "encodings": theory.quadratic_encoding(shifts),
        "w_key_position": rng.normal(size=(position_dim, key_dim)),
        "u": rng.normal(size=key_dim),
        "v": rng.normal(size=key_dim),
    }
    absolute = {"waves": rng.normal(size=(height * width, in_channels))}
    figure = figures.translated_picture(image, lift, w_qry, w_key, absolute=absolute, relative={"it": relative})
    state, pixels = figure.state, as_image(image)
    ours = javascript(
        "translated_picture",
        """(() => {
            const [s, image, size] = a, x = f.tokens(image, s.lift), list = (image) => Array.from(image.data);
            const A = f.absoluteScores(x, s.absolute.waves, s.w_qry, s.w_key);
            const moved = f.move(image, [2, -1]);
            return {
                x, A, R: f.relativeScores(x, s.relative.it, s.w_qry, s.w_key, size),
                moved: list(moved), attended: list(f.attend(A, image)),
                difference: list(f.differenceMap(image, moved)),
            };
        })()""",
        [state, pixels, [height, width]],
    )
    # The state is rounded for the journey; what the page computes is compared on the state's own numbers.
    lift, w_qry, w_key, waves = (
        np.array(n) for n in (state["lift"], state["w_qry"], state["w_key"], state["absolute"]["waves"])
    )
    sent = {name: np.array(value) for name, value in state["relative"]["it"].items()}
    x = (image.reshape(-1, 3) - 0.5) @ lift
    scores = reference.absolute_scores(x, waves, w_qry, w_key)
    encodings = sent["encodings"][(shifts % [height, width]) @ [width, 1]]
    expected = {
        "x": x,
        "A": scores,
        "R": reference.relative_scores(x, encodings, w_qry, w_key, sent["wKeyPosition"], sent["u"], sent["v"]),
        "moved": shift_image(image, (-2, 1), "circular").ravel(),
        "attended": (scores @ image.reshape(-1, 3)).ravel(),
        "difference": np.abs(image - shift_image(image, (-2, 1), "circular")).max(axis=-1).ravel(),
    }
    for name, value in expected.items():
        np.testing.assert_allclose(ours[name], value, rtol=0, atol=1e-11, err_msg=name)


# ---- chapter 4 ----------------------------------------------------------------------------------------------

RNG = np.random.default_rng(5)
MATRICES = {
    "square": RNG.normal(size=(6, 6)),
    "wide": RNG.normal(size=(4, 6)),
    "tall": RNG.normal(size=(6, 3)),
    "constant": np.full((6, 6), 1 / 6),
    "pairs": np.kron(np.eye(3), [[0.5, -0.5], [-0.5, 0.5]]),
    "identity": np.eye(6),
    "zero": np.zeros((3, 3)),
    "rank two": RNG.normal(size=(6, 2)) @ RNG.normal(size=(2, 6)),
}


@pytest.mark.parametrize("name", MATRICES)
def test_merged_heads_computes_singular_values_and_splits(javascript, name):
    matrix = MATRICES[name]
    ours = javascript("merged_heads", "f.singular(a)", matrix.tolist())
    expected = np.linalg.svd(matrix, compute_uv=False)
    values, vectors = np.array(ours["values"]), np.array(ours["vectors"])
    np.testing.assert_allclose(values[: len(expected)], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(vectors @ vectors.T, np.eye(len(vectors)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.linalg.norm(matrix @ vectors.T, axis=0), values, rtol=0, atol=1e-12)
    assert javascript("merged_heads", "f.rank(f.singular(a).values)", matrix.tolist()) == np.linalg.matrix_rank(
        matrix
    )
    for head_dim in range(1, matrix.shape[1] + 1):
        split = javascript("merged_heads", "f.splitHead(...a)", [matrix.tolist(), head_dim])
        missing = np.linalg.norm(matrix - np.array(split["val"]) @ np.array(split["out"]))
        expected = theory.split_head_matrix(matrix, head_dim, best=True)[2]
        np.testing.assert_allclose(missing, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("width", [1, 2, 3, 6])
def test_merged_heads_gauge_has_its_inverse(javascript, width):
    gauge = javascript("merged_heads", "f.gauge(...a)", [width, 37, 1.7])
    forward, inverse = np.array(gauge["forward"]), np.array(gauge["inverse"])
    np.testing.assert_allclose(forward @ inverse, np.eye(width), rtol=0, atol=1e-12)
    np.testing.assert_allclose(
        np.linalg.norm(forward, axis=0), [1.7 ** (-1) ** n for n in range(width)], rtol=0, atol=1e-12
    )


# ---- chapter 5 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", IMAGES)
def test_heads_on_off_adds_the_heads_that_are_on(javascript, shape):
    rng = np.random.default_rng(shape)
    height, width, channels = shape
    image, weights, shifts = rng.random(shape), rng.normal(size=9), kernel_shifts(3)
    numbers = np.arange(float(height * width)).reshape(height, width, 1)
    for on in (np.ones(9, bool), rng.random(9) < 0.5, np.zeros(9, bool)):
        for literal in (False, True):
            argument = [as_image(image), shifts.tolist(), weights.tolist(), on.tolist(), literal]
            ours = javascript("heads_on_off", "Array.from(f.headSum(...a).data)", argument)
            expected = np.zeros((height * width, channels))
            for weight, shift in zip(weights[on], shifts[on], strict=True):
                keys = shift_image(numbers, -shift if literal else shift, "replicate").ravel().astype(int)
                scores = np.where(keys[:, None] == np.arange(height * width), 0.0, -np.inf)
                expected += reference.self_attention(scores, image.reshape(-1, channels), weight * np.eye(channels))
            np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)
    turned = javascript("heads_on_off", "f.turnedOver(a)", weights.tolist())
    assert np.array_equal(turned, weights[::-1])


# ---- chapter 6 ----------------------------------------------------------------------------------------------

ALPHAS = [0.125, 0.5, 1.0, 5.0, 32.0]


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("center", [(0, 0), (-1, 2), (0.5, 0.5), (-1.5, 0.4), (4, -3.9)])
def test_sharp_head_draws_the_attention_of_a_head(javascript, center, alpha):
    ours = javascript("sharp_head", "f.neighbourhoodAttention(...a)", [9, center, alpha])
    expected = reference.softmax(reference.quadratic_scores(pixel_grid(9, 9) - 4, center, alpha))
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    wide = reference.softmax(reference.quadratic_scores(pixel_grid(61, 61) - 30, center, alpha))
    mass = javascript("sharp_head", "f.targetMass(...a)", [center, alpha])
    np.testing.assert_allclose(mass, wide.max(), rtol=0, atol=1e-12)  # 61 pixels are as good as all


@pytest.mark.parametrize("alpha", ALPHAS)
def test_sharp_head_computes_leakage_layer_and_bound(javascript, alpha):
    rng = np.random.default_rng(6)
    image, kernel = rng.random((7, 9, 1)), rng.normal(size=(3, 3))
    argument = [as_image(image), kernel.ravel().tolist(), alpha]
    leak = javascript("sharp_head", "f.leakage(a)", alpha)
    np.testing.assert_allclose(leak, theory.leakage(alpha), rtol=1e-12)
    layer = theory.conv_to_mhsa(kernel[:, :, None, None], padding="replicate", alpha=alpha)
    ours = javascript("sharp_head", "Array.from(f.nineHeads(...a).data)", argument)
    np.testing.assert_allclose(ours, layer(image).ravel(), rtol=0, atol=1e-9)
    bound = javascript("sharp_head", "f.errorBound(...a)", argument)
    np.testing.assert_allclose(bound, theory.leakage(alpha) * np.ptp(image) * np.abs(kernel).sum(), rtol=1e-12)
    for share, radius in ((0.5, np.log(2)), (0.9, np.log(10))):
        ours = javascript("sharp_head", "f.massRadius(...a)", [share, alpha])
        np.testing.assert_allclose(ours, np.sqrt(radius / alpha), rtol=1e-12)


# ---- chapter 7 ----------------------------------------------------------------------------------------------

PADDING_OF = {"bare": "replicate", "ring": "zeros", "circular": "circular"}


@pytest.mark.parametrize("alpha", [0.25, 1.0, 5.0, 50.0, None])
@pytest.mark.parametrize("border", [*PADDING_OF, "sink"])
def test_fine_print_computes_the_layer(javascript, border, alpha):
    rng = np.random.default_rng(7)
    image, kernel, shifts = rng.random((6, 7, 3)), rng.normal(size=(3, 3, 3, 3)), kernel_shifts(3)
    matrices = kernel.reshape(9, 3, 3)
    used = np.array([h not in (2, 8) for h in range(9)])
    layer = theory.conv_to_mhsa(kernel, padding=PADDING_OF.get(border, "replicate"), alpha=alpha)
    if border == "sink":
        apart = ((relative_shifts(6, 7)[None] - shifts[:, None, None]) ** 2).sum(axis=-1)
        scores = np.where(apart == 0, 0.0, -np.inf) if alpha is None else -alpha * apart
        scores = np.concatenate([scores, np.zeros((9, 42, 1))], axis=2)
        keys, factor = np.concatenate([image.reshape(-1, 3), np.zeros((1, 3))]), 2.0
    else:
        scores, keys, factor = layer.scores(6, 7), layer.keys(image), 1.0
    heads = [
        reference.self_attention(a, keys, factor * m) for a, m in zip(scores[used], matrices[used], strict=True)
    ]
    flat = matrices.reshape(9, 9).tolist()
    argument = [as_image(image), shifts.tolist(), flat, alpha, border, used.tolist()]
    expression = "(a[3] ??= Infinity, Array.from(f.attentionLayer(...a).data))"
    ours = javascript("fine_print", expression, argument)
    np.testing.assert_allclose(ours, sum(heads).ravel(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("padding", ["zeros", "replicate", "circular"])
def test_fine_print_computes_the_convolution(javascript, padding):
    rng = np.random.default_rng(8)
    image, kernel = rng.random((6, 7, 3)), rng.normal(size=(3, 3, 3, 3))
    argument = [as_image(image), kernel_shifts(3).tolist(), kernel.reshape(9, 9).tolist(), padding]
    ours = javascript("fine_print", "Array.from(f.matrixConvolution(...a).data)", argument)
    expected = reference.convolution(image, kernel, padding=padding)
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)


def test_fine_print_compares_border_and_inside(javascript):
    a = np.zeros((6, 7, 3))
    b = a.copy()
    b[0, 0, 1], b[1, 1, 2] = 0.5, -0.25
    ours = javascript("fine_print", "f.compare(...a)", [as_image(a), as_image(b)])
    assert (ours["border"], ours["inside"]) == (0.5, 0.25)


# ---- chapter 8 ----------------------------------------------------------------------------------------------


def points_of_every_kind():
    rng = np.random.default_rng(9)
    yield np.zeros((9, 2))
    for n in range(40):
        points = rng.normal(size=(9, 2))
        yield [
            points,
            rng.integers(-2, 3, size=(9, 2)).astype(float),
            points + np.array([1.5, 0]),
            np.outer(rng.normal(size=9), rng.normal(size=2)),
            np.abs(points) * (rng.random((9, 1)) < 0.5),
            points * np.array([1, 0]),
            np.abs(points) * np.array([1, 0]),
        ][n % 7]


def test_fewest_heads_counts_as_theory_does(javascript):
    seen = set()
    for points in points_of_every_kind():
        kernel = points.reshape(3, 3, 1, 2)
        ours = javascript("fewest_heads", "f.fewestHeads(a)", points.tolist())
        needed, rank = theory.heads_needed(kernel), theory.kernel_rank(kernel)
        assert (len(ours["heads"]), ours["rank"]) == (needed, rank)
        seen.add((rank, needed))
        patterns = np.array([head["pattern"] for head in ours["heads"]]).reshape(-1, 9)
        matrices = np.array([head["matrix"] for head in ours["heads"]]).reshape(-1, 2)
        assert (patterns >= 0).all()
        np.testing.assert_allclose(patterns.sum(axis=1), 1, rtol=1e-12)
        np.testing.assert_allclose(patterns.T @ matrices, points, rtol=0, atol=1e-12)
    assert seen == {(0, 0), (1, 1), (1, 2), (2, 2), (2, 3)}


def test_fewest_heads_sums_windows(javascript):
    rng = np.random.default_rng(10)
    image, weights = rng.random((7, 5, 1)), rng.normal(size=9)
    ours = javascript("fewest_heads", "Array.from(f.windowSum(...a).data)", [as_image(image), weights.tolist()])
    expected = reference.convolution(image, weights.reshape(3, 3, 1, 1))
    np.testing.assert_allclose(ours, expected.ravel(), rtol=0, atol=1e-12)


# ---- chapter 10 ---------------------------------------------------------------------------------------------

QUERIES = [(0, 0), (3, 2), (6, 6)]


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("shape", [(0.0625, 1, 0), (0.5, 2, 45), (2, 4, 130)])
def test_rows_times_columns_draws_a_turned_gaussian(javascript, query, shape):
    alpha, elongation, angle = shape
    center = (-2, 3)
    y, x = (pixel_grid(7, 7) - query - center).T
    turn = np.deg2rad(angle)
    along, across = np.cos(turn) * y + np.sin(turn) * x, np.cos(turn) * x - np.sin(turn) * y
    expected = -alpha * (elongation * along**2 + across**2 / elongation)
    options = {"kind": "gaussian", "center": center, "alpha": alpha, "elongation": elongation, "angle": angle}
    ours = javascript("rows_times_columns", "Array.from(f.scores(...a))", [7, query, options])
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("query", QUERIES)
def test_rows_times_columns_reads_tables_and_marginals(javascript, query):
    rng = np.random.default_rng(11)
    rows, columns, table = rng.normal(size=13), rng.normal(size=13), rng.normal(size=(13, 13))
    i, j = (pixel_grid(7, 7) - query + 6).T
    options = {
        "sum": ({"rows": rows.tolist(), "columns": columns.tolist()}, rows[i] + columns[j]),
        "table": ({"table": table.ravel().tolist()}, table[i, j]),
    }
    for kind, (extra, expected) in options.items():
        ours = javascript("rows_times_columns", "Array.from(f.scores(...a))", [7, query, {"kind": kind, **extra}])
        np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-12)
    attention = reference.softmax(table[i, j]).reshape(7, 7)
    ours = javascript("rows_times_columns", "f.marginals(...a)", [7, attention.ravel().tolist()])
    np.testing.assert_allclose(list(ours["rows"]), attention.sum(axis=1), rtol=0, atol=1e-12)
    np.testing.assert_allclose(list(ours["columns"]), attention.sum(axis=0), rtol=0, atol=1e-12)


def test_rows_times_columns_counts(javascript):
    counts = javascript("rows_times_columns", "f.counts(a)", 16)
    assert counts == {"dense": 16**4, "separable": 2 * 16**3, "map": 16**4, "maps": 2 * 16**2}
    assert [javascript("rows_times_columns", "f.bytes(a)", n) for n in (4, 262144)] == ["4 B", "260 kB"]


# ---- chapter 9 ----------------------------------------------------------------------------------------------

NUMPY_MODES = {"zeros": "constant", "replicate": "edge", "reflect": "reflect", "circular": "wrap"}


@pytest.mark.parametrize("mode", NUMPY_MODES)
@pytest.mark.parametrize(
    ("size", "stride", "dilation"), [(1, 1, 1), (2, 1, 3), (3, 2, 1), (3, 3, 2), (4, 1, 1), (5, 2, 1)]
)
def test_converted_kernel_attends_as_the_convolution_does(javascript, mode, size, stride, dilation):
    rng = np.random.default_rng(size)
    image, kernel = rng.random((7, 9, 1)), rng.normal(size=(size, size))
    before = dilation * (size - 1) // 2
    after = dilation * (size - 1) - before
    padded = np.pad(image, ((before, after), (before, after), (0, 0)), NUMPY_MODES[mode])
    options = {"rows": 6 // stride + 1, "columns": 8 // stride + 1, "stride": stride, "dilation": dilation}
    ours = javascript(
        "converted_kernel",
        """(() => {
            const [image, weights, K, mode, shape] = a, list = (image) => Array.from(image.data);
            const padded = f.padImage(image, f.marginsOf(K, shape.dilation), mode);
            return {
                padded: list(padded),
                hard: list(f.attend(padded, weights, K, { ...shape, alpha: Infinity })),
                soft: list(f.attend(padded, weights, K, { ...shape, alpha: 2 })),
                window: list(f.slideWindow(padded, weights, K, shape)),
            };
        })()""",
        [as_image(image), kernel.ravel().tolist(), size, mode, options],
    )
    assert np.array_equal(ours["padded"], padded.ravel())
    expected = reference.convolution(
        image, kernel[:, :, None, None], padding=mode, stride=stride, dilation=dilation
    )
    np.testing.assert_allclose(ours["window"], expected.ravel(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours["hard"], expected.ravel(), rtol=0, atol=1e-12)
    conv = torch.nn.Conv2d(1, 1, size, stride=stride, dilation=dilation, bias=False).double()
    with torch.no_grad():
        conv.weight.copy_(torch.from_numpy(kernel))
        soft = conv_to_attention(conv, alpha=2.0)(torch.from_numpy(padded.transpose(2, 0, 1)))
    np.testing.assert_allclose(ours["soft"], soft.numpy().ravel(), rtol=0, atol=1e-12)


# ---- chapter 11 ---------------------------------------------------------------------------------------------

REACH = 5


def heads_in_training(seed, heads=4, outputs=3):
    """A layer as the page keeps it, its target, and the autocorrelation of a random walk or of nothing."""
    rng = np.random.default_rng(seed)
    layer = {
        "centers": rng.normal(size=(heads, 2)),
        "spreads": rng.uniform(0.3, 3, size=heads),
        "weights": rng.normal(size=(heads, outputs)),
    }
    lags = np.abs(np.arange(-2 * REACH, 2 * REACH + 1))
    return layer, rng.normal(size=(9, outputs)), np.outer(0.9**lags, 0.8**lags)


def loss_in_pytorch(layer, target, table):
    """Σ_δδ′ r(δ − δ′) D_δ · D_δ′ divided by the number of outputs."""
    axis = torch.arange(-REACH, REACH + 1, dtype=torch.float64)
    alpha = layer["spreads"] ** 2 / 2
    rows, columns = (
        torch.softmax(-alpha[:, None] * (axis - layer["centers"][:, i, None]) ** 2, dim=1) for i in (0, 1)
    )
    difference = torch.einsum("hi,hj,ho->ijo", rows, columns, layer["weights"]).clone()
    difference[REACH - 1 : REACH + 2, REACH - 1 : REACH + 2] -= torch.from_numpy(target).view(3, 3, -1)
    flat = difference.flatten(0, 1)
    if table is None:
        return (flat**2).sum() / flat.shape[1]
    shifts = pixel_grid(2 * REACH + 1, 2 * REACH + 1)
    between = shifts[:, None] - shifts[None] + 2 * REACH
    gamma = torch.from_numpy(table[between[..., 0], between[..., 1]])
    return (flat * (gamma @ flat)).sum() / flat.shape[1]


def as_lists(layer):
    return {name: values.tolist() for name, values in layer.items()}


def as_tensors(layer):
    return {name: torch.tensor(values, requires_grad=True) for name, values in layer.items()}


@pytest.mark.parametrize("correlated", [False, True])
def test_training_heads_computes_loss_and_gradients(javascript, correlated):
    layer, target, table = heads_in_training(1)
    ours = javascript(
        "training_heads",
        """(() => {
            const [layer, target, reach, table] = a;
            const gamma = table && f.autocorrelationMatrix(table, reach);
            const alone = f.expectedLoss(layer, target, reach, gamma);
            return { ...f.lossAndGradients(layer, target, reach, gamma), alone };
        })()""",
        [as_lists(layer), target.tolist(), REACH, table.ravel().tolist() if correlated else None],
    )
    tensors = as_tensors(layer)
    loss = loss_in_pytorch(tensors, target, table if correlated else None)
    loss.backward()
    np.testing.assert_allclose([ours["loss"], ours["alone"]], loss.item(), rtol=1e-12)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(ours["gradients"][name], tensor.grad, rtol=0, atol=1e-11, err_msg=name)


def test_training_heads_descends_as_pytorch_does(javascript):
    layer, target, table = heads_in_training(2)
    rates, decay, steps = {"heads": 0.05, "weights": 0.02}, 1e-3, 30
    ours = javascript(
        "training_heads",
        """(() => {
            const [layer, target, reach, table, rates, decay, steps] = a;
            const [memory, gamma] = [f.memoryFor(layer), f.autocorrelationMatrix(table, reach)];
            const options = { gamma, rates, decay };
            const losses = Array.from({ length: steps }, () => f.step(layer, memory, target, reach, options));
            return { layer, losses };
        })()""",
        [as_lists(layer), target.tolist(), REACH, table.ravel().tolist(), rates, decay, steps],
    )
    tensors, losses = as_tensors(layer), []
    what = {"params": [tensors["weights"]], "lr": rates["weights"], "weight_decay": decay}
    where = {"params": [tensors["centers"], tensors["spreads"]], "lr": rates["heads"]}
    optimizer = torch.optim.Adam([what, where])
    for _ in range(steps):
        loss = loss_in_pytorch(tensors, target, table)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    np.testing.assert_allclose(ours["losses"], losses, rtol=1e-9)
    for name, tensor in tensors.items():
        np.testing.assert_allclose(ours["layer"][name], tensor.detach(), rtol=0, atol=1e-9, err_msg=name)


def test_training_heads_starts_as_the_paper_does(javascript):
    starts = [javascript("training_heads", "f.startingLayer(...a)", [16, 16, 0.5, seed]) for seed in range(40)]
    centers = np.concatenate([start["centers"] for start in starts])
    assert np.abs(centers).max() < 4.4
    assert abs(centers.std() - 1.86) < 0.1, "a normal distribution of deviation 2, cut off at 4.4"
    assert abs(np.mean([start["spreads"] for start in starts]) - 1) < 0.01
    assert starts[0] == javascript("training_heads", "f.startingLayer(...a)", [16, 16, 0.5, 0])
    assert starts[0] != starts[1]


def test_training_heads_judges_by_the_nearest_head(javascript):
    centers = kernel_shifts(3) + np.array([0.1, -0.1])
    centers[3] = (5, 5)
    ours = javascript("training_heads", "f.verdict(a)", {"centers": centers.tolist()})
    assert ours["reached"] == 8
    np.testing.assert_allclose(ours["farthest"], np.hypot(0.9, 0.1), rtol=1e-12)


# ---- chapter 12 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 6, 3), (8, 4, 2)])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_down_sampling_rearranges_pixels(javascript, shape, factor):
    height, width, channels = (shape[0] * factor, shape[1] * factor, shape[2])
    image = np.random.default_rng(shape).random((height, width, channels))
    expected = data.downsample(torch.from_numpy(image).movedim(-1, 0), factor).movedim(0, -1).numpy()
    argument = [as_image(image), factor]
    small = javascript(
        "down_sampling", "(({data, ...rest}) => ({...rest, data: Array.from(data)}))(f.downsample(...a))", argument
    )
    assert (small["height"], small["width"], small["channels"]) == expected.shape
    assert np.array_equal(small["data"], expected.ravel())
    again = javascript("down_sampling", "Array.from(f.upsample(f.downsample(...a), a[1]).data)", argument)
    assert np.array_equal(again, image.ravel())
    assert javascript("down_sampling", "f.different(a[0], f.upsample(f.downsample(...a), a[1]))", argument) == 0
    planes = javascript("down_sampling", "Array.from(f.planesOf(f.downsample(...a), a[1]).data)", argument)
    by_plane = image.reshape(shape[0], factor, shape[1], factor, channels).transpose(1, 0, 3, 2, 4)
    assert np.array_equal(planes, by_plane.ravel())
    row, column = height - 1, width // 2
    place = javascript("down_sampling", "f.place(...a)", [[row, column], factor])
    i, j = place["token"]
    assert np.array_equal(expected[i, j, place["plane"] :: factor**2], image[row, column])


@pytest.mark.parametrize(("height", "width"), [(8, 8), (12, 4)])
@pytest.mark.parametrize("factor", [1, 2, 4])
def test_down_sampling_counts_as_the_package_does(javascript, height, width, factor):
    layer = QuadraticAttention2d(6, 6, heads=5)
    x = torch.zeros(1, 6, height // factor, width // factor)
    told = javascript("down_sampling", "f.costs(...a)", [height, width, factor, {"heads": 5, "channels": 6}])
    assert told["tokens"] == x[0, 0].numel()
    assert told["map"] == layer.attention_probs(*x.shape[2:])[0].numel()
    for method in ("dense", "separable"):
        counted = cost(layer, x, method=method)
        assert (told["matrices"], told[method]) == (counted.linear, counted.attention)


# ---- chapter 13 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("center", "alpha"), [((-0.9, 0.1), 2.2), ((3.5, -3.8), 0.13), ((0.4, 2.9), -0.02)])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_head_explorer_computes_quadratic_maps(javascript, n, center, alpha):
    layer = QuadraticAttention2d(2, 2, heads=1, centers=[center], alpha=alpha).double()
    script = (
        "f.positionMap(a.n, { rows: f.quadraticTable(a.n, a.center[0], a.alpha),"
        " columns: f.quadraticTable(a.n, a.center[1], a.alpha) }).map((row) => Array.from(row))"
    )
    ours = javascript(
        "head_explorer", script, {"n": n, "center": layer.centers[0].tolist(), "alpha": layer.alpha.item()}
    )
    np.testing.assert_allclose(ours, layer.attention_probs(n, n)[0].detach().numpy(), rtol=0, atol=1e-12)


def test_head_explorer_computes_learned_maps(javascript):
    torch.manual_seed(13)
    layer = LearnedAttention2d(3, 3, size=5, heads=2, position_dim=4).double()
    expected = layer.attention_probs(5, 5).detach().numpy()
    for h in range(2):
        rows = (layer.row_table @ layer.row_vectors[h]).tolist()
        columns = (layer.column_table @ layer.column_vectors[h]).tolist()
        argument = {"rows": rows, "columns": columns}
        ours = javascript("head_explorer", "f.positionMap(5, a).map((row) => Array.from(row))", argument)
        np.testing.assert_allclose(ours, expected[h], rtol=0, atol=1e-12)
        sharp = javascript("head_explorer", "f.positionMap(5, a, 3).map((row) => Array.from(row))", argument)
        power = expected[h] ** 3
        np.testing.assert_allclose(sharp, power / power.sum(axis=1, keepdims=True), rtol=0, atol=1e-12)


@pytest.mark.parametrize("channels", [1, 3])
def test_head_explorer_attends_and_measures(javascript, channels):
    rng = np.random.default_rng(channels)
    n, side = 3, 2
    image = rng.random((n * side, n * side, channels))
    sent = rng.integers(0, 256, size=(n * n, n * n))
    sent[:, 4] = 0
    script = """(() => {
        const [image, bytes, query] = a, map = f.sentMap(9, Uint8Array.from(bytes)), sharp = f.sharpest(map);
        const list = (rows) => rows.map((row) => Array.from(row));
        const seen = f.mixTokens(image, map, 3), moved = f.mixTokens(image, sharp, 3);
        return { map: list(map), sharp: list(sharp), mean: list(f.meanMap([map, sharp])),
            seen: Array.from(seen.data), apart: f.levels(seen, moved), found: f.measures(map[query], 3, [1, 2]) };
    })()"""
    ours = javascript("head_explorer", script, [as_image(image), sent.ravel().tolist(), 5])
    map_ = sent / sent.sum(axis=1, keepdims=True)
    sharp = np.eye(n * n)[map_.argmax(axis=1)]
    np.testing.assert_allclose(ours["map"], map_, rtol=0, atol=1e-12)
    assert np.array_equal(ours["sharp"], sharp)
    np.testing.assert_allclose(ours["mean"], (map_ + sharp) / 2, rtol=0, atol=1e-12)
    tokens = image.reshape(n, side, n, side, channels).transpose(0, 2, 1, 3, 4).reshape(n * n, -1)
    seen, moved = (
        (m @ tokens).reshape(n, n, side, side, channels).transpose(0, 2, 1, 3, 4).ravel() for m in (map_, sharp)
    )
    np.testing.assert_allclose(ours["seen"], seen, rtol=0, atol=1e-8)
    np.testing.assert_allclose(ours["apart"], 255 * np.abs(seen - moved).mean(), rtol=0, atol=1e-5)
    row, shifts = map_[5], pixel_grid(n, n) - [1, 2]
    found = ours["found"]
    np.testing.assert_allclose(found["mean"], row @ shifts, rtol=0, atol=1e-12)
    np.testing.assert_allclose(found["near"], row[np.abs(shifts).max(axis=1) <= 1].sum(), rtol=0, atol=1e-12)
    positive = row[row > 0]
    np.testing.assert_allclose(found["bits"], -(positive * np.log2(positive)).sum(), rtol=0, atol=1e-12)
    assert found["at"] == shifts[row.argmax()].tolist()


# ---- chapter 14 ---------------------------------------------------------------------------------------------

NETWORKS = [
    {"side": 16, "downsample": 2, "layers": 2, "heads": 9, "width": 16, "intermediate": 24, "key_dim": 6},
    {"side": 8, "downsample": 4, "layers": 1, "heads": 1, "width": 12, "intermediate": 8, "key_dim": 12},
]


@pytest.mark.parametrize("kind", ["quadratic", "learned", "content", "convolution"])
@pytest.mark.parametrize("sizes", NETWORKS, ids=str)
def test_cost_explorer_counts_as_the_package_does(javascript, kind, sizes):
    options = {name: size for name, size in sizes.items() if name != "side"}
    network = AttentionClassifier(kind, image_size=sizes["side"], **options)
    x = torch.zeros(1, 3, sizes["side"], sizes["side"])
    for method in ("dense", "separable"):
        argument = {"kind": kind, "separable": method == "separable", "keyDim": sizes["key_dim"]} | sizes
        told = javascript(
            "cost_explorer",
            "(({parameters: p, operations: o}) => [f.total(p), f.linear(o), o.maps])(f.costs(a))",
            argument,
        )
        assert told == list(cost(network, x, method=method))


@pytest.mark.parametrize(("side", "width"), [(32, 8), (9, 4)])
def test_cost_explorer_knows_resnet18(javascript, side, width):
    told = javascript("cost_explorer", "f.resnet(a[0], {width: a[1]})", [side, width])
    counted = cost(ResNet18(width=width), torch.zeros(1, 3, side, side))
    assert (told["parameters"], told["operations"]) == (counted.parameters, counted.total)
    numbers = [0, 12, 999, 1234, 999_999, 6.18e9, 1.5e16]
    assert javascript("cost_explorer", "a.map(f.short)", numbers) == [
        "0", "12", "999", "1.23 k", "1 M", "6.18 G", "15 P",
    ]  # fmt: skip


# ---- chapter 15 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("K", "P"), [(1, 3), (2, 1), (2, 4), (3, 1), (3, 4), (4, 2), (5, 2), (7, 3), (9, 4), (13, 2)]
)
def test_nine_neighbours_has_the_shifts_and_the_blocks(javascript, K, P):
    assert javascript("nine_neighbours", "f.patchShifts(...a)", [K, P]) == theory.patch_shifts(K, P).tolist()
    codes = np.arange(1.0, K * K + 1).reshape(K, K, 1, 1)
    blocks = theory.patch_matrices(codes, P)
    ours = javascript("nine_neighbours", "f.patchBlocks(...a)", [K, P])
    assert np.array_equal(ours, blocks.reshape(len(blocks), -1))


@pytest.mark.parametrize(("K", "P"), [(1, 2), (2, 3), (3, 1), (3, 4), (5, 2), (6, 3)])
def test_nine_neighbours_cuts_the_window_as_the_blocks_do(javascript, K, P):
    """Pixel by pixel the taps of each patch are the entries of the pixel's column in the block of that patch."""
    shifts = theory.patch_shifts(K, P)
    blocks = theory.patch_matrices(np.ones((K, K, 1, 1)), P).reshape(len(shifts), P, P, P * P)
    for i, j in np.ndindex(P, P):
        parts = javascript("nine_neighbours", "f.windowByPatch(...a)", [[2 * P + i, 3 * P + j], K, P])
        found = {tuple(part["shift"]): sorted(map(tuple, part["pixels"])) for part in parts}
        expected = {}
        for shift, block in zip(shifts, blocks, strict=True):
            corner = [2 * P + P * shift[0], 3 * P + P * shift[1]]
            if block[..., i * P + j].any():
                read = np.argwhere(block[..., i * P + j]) + corner
                expected[tuple(shift.tolist())] = sorted(map(tuple, read.tolist()))
        assert found == expected


# ---- chapter 17 ---------------------------------------------------------------------------------------------


def position_terms(center, waves, base):
    """B(δ) of every family of heads, as functions of shifts."""
    along = base ** (-np.arange(waves) / waves)
    around = base ** (-np.arange(2 * waves) / (2 * waves))
    angles = 2.4 * np.arange(2 * waves)
    directions = around[:, None] * np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return {
        "quadratic": lambda d: reference.quadratic_scores(d, center, 1.0),
        "axial": lambda d: np.cos((d - center)[..., None] * along).sum(axis=(-2, -1)),
        "mixed": lambda d: np.cos((d - center) @ directions.T).sum(axis=-1),
        "table": lambda d: (d == center).all(axis=-1) * 1.0,
    }


@pytest.mark.parametrize("family", ["quadratic", "axial", "mixed", "table"])
@pytest.mark.parametrize(("center", "waves", "base"), [((0, 0), 1, 100.0), ((-1, 2), 8, 100.0), ((4, -3), 3, 10.0)])
def test_family_of_heads_measures_the_gap(javascript, family, center, waves, base):
    size = 9
    span = pixel_grid(2 * size - 1, 2 * size - 1) - (size - 1)
    expected = position_terms(center, waves, base)[family](span)
    argument = [size, family, center, {"waves": waves, "base": base}]
    ours = javascript("family_of_heads", "Array.from(f.positionTable(...a))", argument)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-11)
    own = (span == center).all(axis=1)
    found = javascript("family_of_heads", "f.gapOf(...a)", [ours, size, center])
    np.testing.assert_allclose(found["gap"], expected[own][0] - expected[~own].max(), rtol=0, atol=1e-11)
    runner_up = expected[(span == found["next"]).all(axis=1)][0]
    np.testing.assert_allclose(runner_up, expected[~own].max(), rtol=0, atol=1e-11)


@pytest.mark.parametrize("content", ["none", "before", "gate"])
@pytest.mark.parametrize("window", [3, 4, 9])
def test_family_of_heads_attends(javascript, content, window):
    rng = np.random.default_rng(window)
    size, factor, strength = 9, 1.7, 5.0
    image = rng.random((size, size, 1))
    shifts = relative_shifts(size, size)
    B = position_terms((-1, 2), 2, 100.0)["axial"](shifts)
    start = np.clip(np.arange(size) - window // 2, 0, size - window)[:, None]
    has = (start <= np.arange(size)) & (np.arange(size) < start + window)
    mask = (has[:, None, :, None] & has[None, :, None, :]).reshape(size**2, size**2)
    alike = -strength * (image.ravel() - image.reshape(-1, 1)) ** 2
    position = np.where(mask, factor * B, -np.inf)
    expected = reference.softmax(position + alike if content == "before" else position)
    if content == "gate":
        expected = (expected + reference.softmax(np.where(mask, alike, -np.inf))) / 2
    ours = javascript(
        "family_of_heads",
        """(() => {
            const [image, options] = a, table = f.positionTable(9, "axial", [-1, 2], { waves: 2, base: 100 });
            const attend = (q) => Array.from(f.attentionRow(image, table, [Math.floor(q / 9), q % 9], options));
            const rows = Array.from({ length: 81 }, (_, q) => attend(q)), apart = f.distance(rows[0], rows[40]);
            return { rows, seen: Array.from(f.seenBy(image, table, options).data), apart };
        })()""",
        [as_image(image), {"factor": factor, "window": window, "content": content, "strength": strength}],
    )
    np.testing.assert_allclose(ours["rows"], expected, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours["seen"], expected @ image.ravel(), rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours["apart"], np.abs(expected[0] - expected[40]).sum() / 2, rtol=0, atol=1e-12)


@pytest.mark.parametrize("alpha", [0.0, 1.0, 5.0, 12.0])
@pytest.mark.parametrize("side", [1, 2, 4])
def test_handed_over_starts_as_the_package_does(javascript, alpha, side):
    layer = RelativeAttention2d(3, 3, heads=10, size=side, border="ring").double()
    shifts = theory.patch_shifts(3, 2)
    layer.look_at(torch.from_numpy(shifts), alpha=alpha)
    keys = (side + 2) ** 2
    tables = javascript(
        "handed_over", "a.map((one) => f.startTable(...one))", [[d.tolist(), alpha, side] for d in shifts]
    )
    np.testing.assert_allclose(tables, layer.table.detach()[:9].flatten(1), rtol=0, atol=0)
    assert javascript("handed_over", "f.startTable(null, 5, 1)", None) == [0.0] * 9
    leak = javascript("handed_over", "f.leakage(...a)", [alpha, keys])
    np.testing.assert_allclose(leak, theory.patch_leakage(alpha, keys), rtol=1e-12)
    mass = javascript("handed_over", "f.massAt(...a)", [[0, 0], tables[4], None, side])
    np.testing.assert_allclose(mass, 1 - leak, rtol=0, atol=1e-12)


def test_handed_over_attends_as_the_package_does(javascript):
    torch.manual_seed(0)
    side, heads = 4, 10
    layer = RelativeAttention2d(6, 6, heads=heads, size=side, border="ring", content=True).double()
    x = torch.randn(1, 6, side, side, dtype=torch.float64)
    tokens = x.flatten(2).transpose(1, 2)
    query, key = (
        linear(tokens).unflatten(-1, (heads, layer.key_dim)).transpose(1, 2) for linear in (layer.query, layer.key)
    )
    content = (query @ key.transpose(-1, -2) / layer.key_dim**0.5)[0].detach()
    expected = layer.attention_probs(x)[0].detach().numpy()
    tables = layer.table.detach().flatten(1)
    between = relative_shifts(side, side)
    for h in (0, 7):
        argument = [tables[h].tolist(), content[h].tolist(), side]
        rows = javascript(
            "handed_over",
            "a[1].map((one, q) => f.attentionRow(a[0], one, [Math.floor(q / a[2]), q % a[2]], a[2]))",
            argument,
        )
        np.testing.assert_allclose(np.sum(rows, axis=1), 1, rtol=0, atol=1e-12)
        inside = np.reshape(rows, (side**2, side + 2, side + 2))[:, 1:-1, 1:-1].reshape(side**2, -1)
        np.testing.assert_allclose(inside, expected[h], rtol=0, atol=1e-12)
        for shift in ([0, 0], [-1, 1], [1, 0]):
            mass = javascript("handed_over", "f.massAt(...a)", [shift, *argument])
            wanted = expected[h][(between == shift).all(axis=-1)].mean()
            np.testing.assert_allclose(mass, wanted, rtol=0, atol=1e-12)


def test_two_phases_reads_its_curves(javascript):
    rng = np.random.default_rng(0)
    values = rng.random(5)
    ours = javascript("two_phases", "f.meanAndSpread(a)", values.tolist())
    np.testing.assert_allclose([ours["mean"], ours["spread"]], [values.mean(), values.std(ddof=1)], rtol=1e-12)
    assert javascript("two_phases", "f.meanAndSpread([0.5])", None) == {"mean": 0.5, "spread": 0}
    x, y = np.sort(rng.random(6)), rng.random(6)
    places = [0.0, *x.tolist(), *rng.random(20).tolist(), 1.0]
    found = javascript(
        "two_phases", "a[1].map((x) => f.valueAt(a[0], x))", [np.stack([x, y], axis=1).tolist(), places]
    )
    np.testing.assert_allclose(found, np.interp(places, x, y), rtol=0, atol=1e-12)
