"""Pictures of a rollout that need no graphics driver and no network: a GIF and a web page."""

import base64
import math
import pathlib
import string

import numpy as np
from PIL import Image, ImageDraw

from jaxagent.types import Skeleton

_SIZE = (480, 320)
_OVERSAMPLE = 2  # drawn larger and scaled down: smooth edges
_SKY, _GROUND, _LINE = (236, 240, 244), (214, 219, 224), (184, 192, 200)
_BODY = ((206, 122, 61), (233, 160, 96))  # far and near parts
_PALETTE_FRAMES = 200


def write_gif(path: pathlib.Path, body: Skeleton, caption: str = "") -> None:
    """Draw a rollout as an animated GIF at its true speed.

    Args:
        path: where to.
        body: what to draw; long rollouts are thinned out to 200 frames over at most 10 seconds.
        caption: a line at the top.
    """
    step = max(1, round(0.05 / body.seconds))
    segments = body.segments[::step][:_PALETTE_FRAMES]
    frames = [_draw(frame, body.radius, caption) for frame in segments]
    milliseconds = max(20, round(1000 * body.seconds * step))
    first, *rest = (frame.quantize(48) for frame in frames)
    first.save(path, save_all=True, append_images=rest, duration=milliseconds, loop=0)


def _draw(segments: np.ndarray, radius: np.ndarray, caption: str) -> Image.Image:
    """One frame, seen from a camera that travels with the body."""
    width, height = (_OVERSAMPLE * side for side in _SIZE)
    image = Image.new("RGB", (width, height), _SKY)
    pen = ImageDraw.Draw(image)
    centre = segments.mean(axis=(0, 1)) * (1, 1, 0) + (0, 0, 0.4)
    camera = _Camera(centre, 0.55 * width, (width / 2, height * 0.52))
    _draw_ground(pen, camera, centre, (width, height))
    ground = segments * (1, 1, 0)
    for ends, thick in zip(ground, radius.tolist()):
        _stroke(pen, camera, ends, thick, _LINE)  # shadow
    depth = camera.depth(segments.mean(axis=1))
    near, far = depth.min(), depth.max()
    for i in np.argsort(-depth):
        share = (far - depth[i]) / max(far - near, 1e-6)
        colour = tuple(round(a + (b - a) * share) for a, b in zip(*_BODY))
        _stroke(pen, camera, segments[i], float(radius[i]), colour)
    if caption:
        pen.text((16, 12), caption, fill=(60, 60, 60), font_size=26)
    return image.resize(_SIZE, Image.Resampling.LANCZOS)


class _Camera:
    """Perspective from behind and above."""

    def __init__(self, target: np.ndarray, focal: float, middle: tuple[float, float]):
        yaw, pitch, distance = math.radians(-60), math.radians(24), 4.2
        forward = np.array(
            [-math.cos(yaw) * math.cos(pitch), -math.sin(yaw) * math.cos(pitch), -math.sin(pitch)]
        )
        right = np.cross(forward, (0, 0, 1))
        right /= np.linalg.norm(right)
        self.axes = np.stack([right, np.cross(right, forward), forward])
        self.eye = target - distance * forward
        self.focal, self.middle = focal, middle

    def depth(self, points: np.ndarray) -> np.ndarray:
        return (points - self.eye) @ self.axes[2]

    def project(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Pixels, and pixels per metre there."""
        x, y, z = np.moveaxis((points - self.eye) @ self.axes.T, -1, 0)
        scale = self.focal / np.maximum(z, 0.1)
        return np.stack([self.middle[0] + x * scale, self.middle[1] - y * scale], -1), scale


def _stroke(pen, camera: _Camera, ends: np.ndarray, radius: float, colour) -> None:
    pixels, scale = camera.project(ends)
    width = max(2, round(2 * radius * float(scale.mean())))
    if np.abs(pixels[0] - pixels[1]).max() > 0.5:
        pen.line([tuple(p) for p in pixels], fill=colour, width=width)
    for (x, y), s in zip(pixels, scale):
        r = radius * s
        pen.ellipse((x - r, y - r, x + r, y + r), fill=colour)


def _draw_ground(pen, camera: _Camera, centre: np.ndarray, size: tuple[int, int]) -> None:
    """A grid of one metre that stays in place while the camera moves."""
    reach = 12
    horizon = camera.project(centre * (1, 1, 0) + _ahead(camera) * 60)[0][1]
    pen.rectangle((0, max(0, horizon), *size), fill=_GROUND)
    x0, y0 = (math.floor(c) for c in centre[:2])
    for k in range(-reach, reach + 1):
        for line in (
            [(x0 + k, y0 - reach, 0), (x0 + k, y0 + reach, 0)],
            [(x0 - reach, y0 + k, 0), (x0 + reach, y0 + k, 0)],
        ):
            points = np.linspace(np.array(line[0], float), np.array(line[1], float), 25)
            points = points[camera.depth(points) > 0.3]
            if len(points) > 1:
                pen.line([tuple(p) for p in camera.project(points)[0]], fill=_LINE, width=2)


def _ahead(camera: _Camera) -> np.ndarray:
    flat = camera.axes[2] * (1, 1, 0)
    return flat / np.linalg.norm(flat)


def write_html(path: pathlib.Path, body: Skeleton, title: str) -> None:
    """Write a page that plays a rollout and can be turned with the mouse; it loads nothing.

    Args:
        path: where to.
        body: what to draw.
        title: of the page.
    """
    frames = np.round(body.segments * 1000).astype("<i4")  # millimetres
    page = string.Template(_PAGE).substitute(
        title=title,
        frames=base64.b64encode(frames.tobytes()).decode(),
        count=frames.shape[0],
        parts=frames.shape[1],
        radius=np.round(body.radius, 4).tolist(),
        seconds=body.seconds,
    )
    path.write_text(page, encoding="utf-8")


_PAGE = (pathlib.Path(__file__).parent / "rollout_page.html").read_text(encoding="utf-8")
