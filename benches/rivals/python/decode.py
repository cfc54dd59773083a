"""Decoding beside the field's decoders: JPEG to a random-resized crop of 224 x 224, one thread each, input in memory, the same files and crops.

    cargo build --release -p fuelrail-benches
    python3 -m venv target/decode-rivals && target/decode-rivals/bin/pip install -r benches/rivals/python/decode-requirements.txt
    target/decode-rivals/bin/python benches/rivals/python/decode.py target/release/fuelrail-bench [--photos FOLDER] [--json FILE]

Prints CPU-ms per image of each (of the whole process) and the mean absolute difference from torchvision, antialiased, in levels of 255. A rival that
does not install is left out; PyTurboJPEG needs Debian's libturbojpeg0, spdl its ffmpeg. Generated photos are of four sizes; --photos adds real ones, every JPEG below a folder.
"""

import argparse, io, json, pathlib, subprocess, sys, tempfile, time

import numpy as np
from PIL import Image

SIDE = 224
SIZES = {"500 x 375": (500, 375, 12), "0.5 MP": (816, 612, 10), "2 MP": (1632, 1224, 6), "12 MP": (4000, 3000, 3)}


def photo(width, height, seed):
    """Slopes, soft waves, discs with edges, and the noise of a sensor."""
    draw = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float32) / width
    picture = np.full((height, width, 3), 128, np.float32)
    for octave in range(10):
        f, g = draw.uniform(-1, 1, 2) * 2 ** (octave * 0.8)
        wave = np.sin((f * x + g * y) * 6.28 + draw.uniform(0, 6.28)) * 60 / (1 + 0.5 * 2 ** (octave * 0.8))
        picture += wave[..., None] * draw.uniform(0.4, 1, 3).astype(np.float32)
    for _ in range(12):
        inside = (x - draw.uniform()) ** 2 + (y - draw.uniform()) ** 2 < draw.uniform(0.02, 0.17) ** 2
        picture[inside] += draw.uniform(-80, 80, 3)
    picture += draw.normal(0, 6, (height, width, 1)) + draw.normal(0, 2, (height, width, 3))
    out = io.BytesIO()
    quality = (85, 88, 92)[seed % 3]
    Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(out, "JPEG", quality=quality, subsampling="4:2:0")
    return out.getvalue()


def torchvision_():
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg
    from torchvision.transforms.v2 import InterpolationMode, functional

    torch.set_num_threads(1)

    def decode(data, left, top, width, height):
        whole = decode_jpeg(torch.frombuffer(data, dtype=torch.uint8), mode=ImageReadMode.RGB)
        size = [SIDE, SIDE]
        return functional.resized_crop(whole, top, left, height, width, size, InterpolationMode.BILINEAR, True)

    return decode, lambda out: out.permute(1, 2, 0).numpy()


def pillow(draft):
    def decode(data, left, top, width, height):
        picture = Image.open(io.BytesIO(data))
        scale = 1
        if draft:
            before = picture.size[0]
            share = max(SIDE / width, SIDE / height)
            picture.draft("RGB", (int(before * share), int(picture.size[1] * share)))
            scale = picture.size[0] / before
        box = tuple(side * scale for side in (left, top, left + width, top + height))
        return picture.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BILINEAR, box=box)

    return decode, np.asarray


def turbojpeg(scaled):
    import cv2
    from turbojpeg import TJPF_RGB, TurboJPEG

    cv2.setNumThreads(1)
    jpeg = TurboJPEG()

    def decode(data, left, top, width, height):
        eighths = next((n for n in (1, 2, 4) if scaled and min(width, height) * n >= SIDE * 8), 8)
        whole = jpeg.decode(data, pixel_format=TJPF_RGB, scaling_factor=(eighths // np.gcd(eighths, 8), 8 // np.gcd(eighths, 8)))
        left, top, right, bottom = (side * eighths // 8 for side in (left, top, left + width, top + height))
        return cv2.resize(whole[top:bottom, left:right], (SIDE, SIDE), interpolation=cv2.INTER_AREA)

    return decode, np.asarray


def spdl():
    import spdl.io

    def decode(data, left, top, width, height):
        crop = f"crop={width}:{height}:{left}:{top}:exact=1,scale={SIDE}:{SIDE}:flags=bilinear,format=rgb24"
        frames = spdl.io.decode_packets(spdl.io.demux_image(bytes(data)), filter_desc=crop)
        return spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return decode, np.asarray


def dali():
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=1, num_threads=1, device_id=None, prefetch_queue_depth=1, exec_async=False, exec_pipelined=False)
    def pipe():
        data, anchor, shape = (fn.external_source(name=name) for name in ("data", "anchor", "shape"))
        part = fn.decoders.image_slice(data, anchor, shape, device="cpu", axis_names="HW", normalized_anchor=False, normalized_shape=False)
        return fn.resize(part, size=[SIDE, SIDE], interp_type=types.INTERP_LINEAR, antialias=True)

    made = pipe()
    made.build()

    def decode(data, left, top, width, height):
        made.feed_input("data", [np.frombuffer(data, np.uint8)])
        made.feed_input("anchor", [np.array([top, left], np.float32)])
        made.feed_input("shape", [np.array([height, width], np.float32)])
        return made.run()[0]

    return decode, lambda out: np.array(out.at(0))


RIVALS = {
    "torchvision": torchvision_,
    "Pillow": lambda: pillow(False),
    "Pillow, draft": lambda: pillow(True),
    "PyTurboJPEG + OpenCV": lambda: turbojpeg(False),
    "PyTurboJPEG scaled + OpenCV": lambda: turbojpeg(True),
    "spdl": spdl,
    "nvidia-dali": dali,
}


def of_rival(make, files):
    """CPU-ms per image, the lower of two rounds, and the pictures of each file's crops."""
    decode, pixels = make()
    data = [bytearray(file["bytes"]) for file in files]
    jobs = [(n, crop) for n, file in enumerate(files) for crop in file["crops"]]
    seen = [pixels(decode(data[n], *crop)) for n, crop in jobs]
    rounds = []
    for _ in range(2):
        start = time.process_time()
        for n, crop in jobs:
            decode(data[n], *crop)
        rounds.append((time.process_time() - start) * 1e3 / len(jobs))
    return min(rounds), seen


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="fuelrail-bench, built for release")
    parser.add_argument("--photos", type=pathlib.Path)
    parser.add_argument("--crops", type=int, default=8, help="crops of each file")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    sets = {name: [photo(w, h, n) for n in range(count)] for name, (w, h, count) in SIZES.items()}
    names = {name: [f"photo {n}" for n in range(len(files))] for name, files in sets.items()}
    if args.photos:
        found = sorted(p for p in args.photos.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        sets["real"], names["real"] = [p.read_bytes() for p in found], [str(p.relative_to(args.photos)) for p in found]
    rows = []
    for name, contents in sets.items():
        with tempfile.TemporaryDirectory() as folder:
            paths = [pathlib.Path(folder) / f"{n}.jpg" for n in range(len(contents))]
            for path, content in zip(paths, contents):
                path.write_bytes(content)
            command = [args.program, "decode", "--crops", str(args.crops), *map(str, paths)]
            ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            shape = (len(paths) * args.crops, SIDE, SIDE, 3)
            pictures = np.concatenate([np.fromfile(f"{path}.rgb", np.uint8) for path in paths]).reshape(shape)
        files = [{"bytes": content, "crops": crops} for content, crops in zip(contents, ours["crops"])]
        measured = {"fuelrail": (ours["cpu_ms"], pictures)}
        for rival, make in RIVALS.items():
            try:
                measured[rival] = of_rival(make, files)
            except Exception as error:
                print(f"{rival} is left out: {error!r}"[:300], file=sys.stderr)
        reference = measured["torchvision"][1]
        print(f"{name}, {sum(map(len, contents)) / len(contents) / 1024:.0f} KiB a file: CPU-ms per image, difference from torchvision")
        for who, (cpu_ms, seen) in measured.items():
            apart = [float(np.abs(a.astype(int) - b.astype(int)).mean()) for a, b in zip(seen, reference)]
            worst = max(range(len(apart)), key=apart.__getitem__)
            row = {"photos": name, "decoder": who, "cpu_ms": round(cpu_ms, 3), "difference_mean": round(np.mean(apart), 3)}
            row |= {"difference_worst": round(apart[worst], 3), "worst": names[name][worst // args.crops]}
            rows.append(row)
            print(f"  {who:28} {cpu_ms:8.2f} ms   mean {row['difference_mean']:.3f}, worst {row['difference_worst']:.3f} ({row['worst']})")
    if args.json:
        args.json.write_text(json.dumps({"schema": 1, "machine": ours["machine"], "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
