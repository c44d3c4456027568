"""Chapter 13: the heads of trained networks, by model, picture, layer and head."""

import base64

import numpy as np
from jaxtyping import Float

from attnconv import checks, plot
from attnconv.figures.core import Figure, encode_pixels
from attnconv.reference import softmax

_LARGEST = 2**20  # bytes of precomputed maps


def head_explorer(
    networks: dict[str, dict], pictures: dict[str, dict[str, Float[np.ndarray, "height width channels"]]]
) -> Figure:
    """Look at the heads of networks: choose network, picture, layer, head and query.

    Args:
        networks: by name; each has `tokens`, the side of its hidden picture, `pictures`, the name of a group of
            pictures, and one of

            - `centers`, (epoch, layer, head, 2), `alpha`, (epoch, layer, head), and `epochs`, a name for each:
              quadratic heads;
            - `tables`, (layer, head, 2, 2·tokens − 1): scores by row shift and by column shift;
            - `maps`, (picture, layer, head, query, key): what each head does on each picture, kept in one byte.
        pictures: groups of square pictures, by name, one size a group.

    Raises:
        ValueError: arrays that do not fit together, or more than a megabyte of maps.
    """
    if not networks or not pictures or not all(pictures.values()):
        raise ValueError("networks, pictures: expected at least one, and no empty group of pictures")
    groups = {
        group: [{"name": name, "image": encode_pixels(image)} for name, image in members.items()]
        for group, members in pictures.items()
    }
    for group, members in pictures.items():
        sizes = {np.shape(image)[:2] for image in members.values()}
        if len(sizes) != 1 or len(set(*sizes)) != 1:
            raise ValueError(f"pictures[{group!r}]: expected squares of one size, got {sorted(sizes)}")
    models = [_state(name, network, pictures) for name, network in networks.items()]
    return Figure(
        "head_explorer",
        {"groups": groups, "models": models},
        alt=(
            "A picture that is bright where a query looks, a small map for each head of the layer, the picture "
            "that attention makes of it, and the moved picture it tends to when the head is sharpened. Controls "
            "choose the network, the picture, the layer, the head, and how sharp the heads are."
        ),
        caption=(
            "Point at the picture, or use the arrow keys, to move the query, framed in white; a click holds it. "
            "The picture is lit where the query looks. Click on a small map to choose a head. For quadratic heads "
            "the dot is the centre Δ, the solid circle holds half of the mass and the dashed one 90 %; move the "
            "epochs to watch the training. Sharpen such a head, and what attention makes of the picture becomes a "
            "*moved* picture: one tap of a convolution. Maps of positions are computed in this page; those of "
            "content were computed before and kept in one byte an entry."
        ),
        picture=_still(next(iter(networks.items()))),
    )


def _state(name: str, network: dict, pictures: dict) -> dict:
    """What a page needs to know of a network."""
    n = checks.integer("tokens", network["tokens"], least=1)
    group = checks.choice("pictures", network["pictures"], tuple(pictures))
    side = np.shape(next(iter(pictures[group].values())))[0]
    if side % n:
        raise ValueError(f"tokens: expected a divisor of the {side} pixels of a side, got {n}")
    state = {"name": name, "tokens": n, "group": group}
    if "centers" in network:
        centers = checks.array("centers", network["centers"], "epoch layer head coordinate", coordinate=2)
        epochs, layers, heads = centers.shape[:3]
        names = {"epoch": epochs, "layer": layers, "head": heads}
        alpha = checks.array("alpha", network["alpha"], "epoch layer head", **names)
        if len(network["epochs"]) != epochs:
            raise ValueError(f"epochs: expected {epochs} names, got {len(network['epochs'])}")
        history = [
            [{"centers": c, "alphas": a} for c, a in zip(*of_epoch, strict=True)]
            for of_epoch in zip(np.round(centers, 4).tolist(), np.round(alpha, 4).tolist(), strict=True)
        ]
        state |= {"epochs": list(network["epochs"]), "history": history}
    elif "tables" in network:
        tables = checks.array("tables", network["tables"], "layer head axis shift", axis=2, shift=2 * n - 1)
        layers, heads = tables.shape[:2]
        state |= {"tables": np.round(tables, 4).tolist()}
    else:
        sizes = {"picture": len(pictures[group]), "query": n * n, "key": n * n}
        maps = checks.array("maps", network["maps"], "picture layer head query key", **sizes)
        if maps.size > _LARGEST:
            raise ValueError(f"maps: expected at most {_LARGEST} entries, got {maps.size}")
        layers, heads = maps.shape[1:3]
        whole = np.rint(255 * maps / maps.max(axis=-1, keepdims=True)).astype(np.uint8)
        state |= {"maps": base64.b64encode(whole.tobytes()).decode()}
    return state | {"layers": layers, "heads": heads}


def _still(named: tuple[str, dict]) -> plot.Picture:
    """What stands in where scripts do not run: the layers of the first network, mean of the heads."""
    name, network = named
    n = network["tokens"]
    middle = n // 2
    if "maps" in network:
        layers = np.mean(network["maps"], axis=(0, 2))[:, middle * n + middle].reshape(-1, n, n)
    else:
        if "centers" in network:
            away = np.arange(1 - n, n) - np.asarray(network["centers"][-1])[..., None]
            tables = -np.asarray(network["alpha"][-1])[..., None, None] * away**2
        else:
            tables = np.asarray(network["tables"])
        rows, columns = np.moveaxis(softmax(tables[..., n - 1 - middle : 2 * n - 1 - middle]), 2, 0)
        layers = (rows[..., :, None] * columns[..., None, :]).mean(axis=1)
    figure, axes = plot.drawing(7, 7 / len(layers) + 0.4, columns=len(layers), squeeze=False)
    for number, (ax, layer) in enumerate(zip(axes[0], layers, strict=True), start=1):
        plot.show_attention(ax, layer, f"Layer {number}", query=(middle, middle))
    return plot.picture(
        figure, alt=f"The mean over the heads of what a query in the middle looks at, for each layer: {name}."
    )
