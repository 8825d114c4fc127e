"""Names and shapes in torchvision's state dicts, written down from its files."""


def batch_norm(name, planes):
    """The five entries of a BatchNorm2d."""
    vectors = ("weight", "bias", "running_mean", "running_var")
    return [
        *((f"{name}.{key}", (planes,)) for key in vectors),
        (f"{name}.num_batches_tracked", ()),
    ]


def convolution(name, planes, in_planes, size, bias=False):
    """The weight of a convolution, and its bias if it has one."""
    found = [(f"{name}.weight", (planes, in_planes, size, size))]
    return [*found, (f"{name}.bias", (planes,))] if bias else found


def linear(name, planes, in_planes):
    """Weight and bias of a Linear."""
    return [(f"{name}.weight", (planes, in_planes)), (f"{name}.bias", (planes,))]


def basic_block(name, in_planes, planes, downsample):
    """A block of ResNet-18 and 34."""
    found = [
        *convolution(f"{name}.conv1", planes, in_planes, 3),
        *batch_norm(f"{name}.bn1", planes),
        *convolution(f"{name}.conv2", planes, planes, 3),
        *batch_norm(f"{name}.bn2", planes),
    ]
    return found + downsampled(name, in_planes, planes) if downsample else found


def bottleneck(name, in_planes, planes, downsample):
    """A block of ResNet-50, 101, 152; ``4 * planes`` channels go out."""
    found = [
        *convolution(f"{name}.conv1", planes, in_planes, 1),
        *batch_norm(f"{name}.bn1", planes),
        *convolution(f"{name}.conv2", planes, planes, 3),
        *batch_norm(f"{name}.bn2", planes),
        *convolution(f"{name}.conv3", 4 * planes, planes, 1),
        *batch_norm(f"{name}.bn3", 4 * planes),
    ]
    return found + downsampled(name, in_planes, 4 * planes) if downsample else found


def downsampled(name, in_planes, planes):
    """The shortcut of a block whose shape changes."""
    return [
        *convolution(f"{name}.downsample.0", planes, in_planes, 1),
        *batch_norm(f"{name}.downsample.1", planes),
    ]


def stem():
    """What stands before the blocks of every ResNet."""
    return [*convolution("conv1", 64, 3, 7), *batch_norm("bn1", 64)]


def resnet_basic(layers):
    """ResNet-18: (2, 2, 2, 2); ResNet-34: (3, 4, 6, 3)."""
    found = stem()
    in_planes = 64
    for stage, (blocks, planes) in enumerate(zip(layers, (64, 128, 256, 512)), 1):
        for i in range(blocks):
            # Only the first stage begins with the shape it goes on with.
            found += basic_block(
                f"layer{stage}.{i}", in_planes, planes, downsample=i == 0 and stage > 1
            )
            in_planes = planes
    return found + linear("fc", 1000, 512)


def resnet_bottleneck(layers):
    """ResNet-50: (3, 4, 6, 3); 101: (3, 4, 23, 3); 152: (3, 8, 36, 3)."""
    found = stem()
    in_planes = 64
    for stage, (blocks, planes) in enumerate(zip(layers, (64, 128, 256, 512)), 1):
        for i in range(blocks):
            found += bottleneck(f"layer{stage}.{i}", in_planes, planes, downsample=i == 0)
            in_planes = 4 * planes
    return found + linear("fc", 1000, 2048)


# (in, out) channels of the blocks features.1 to features.17.
MOBILENET_BLOCKS = [
    (32, 16),
    (16, 24), (24, 24),
    (24, 32), (32, 32), (32, 32),
    (32, 64), (64, 64), (64, 64), (64, 64),
    (64, 96), (96, 96), (96, 96),
    (96, 160), (160, 160), (160, 160),
    (160, 320),
]  # fmt: skip


def mobilenet_v2():
    """MobileNetV2 of width 1."""
    found = [*convolution("features.0.0", 32, 3, 3), *batch_norm("features.0.1", 32)]
    for i, (in_planes, planes) in enumerate(MOBILENET_BLOCKS, 1):
        name = f"features.{i}.conv"
        if i == 1:  # no expansion: the modules that follow have lower numbers
            wide, depthwise, project = 32, f"{name}.0", f"{name}.1"
        else:
            wide, depthwise, project = 6 * in_planes, f"{name}.1", f"{name}.2"
            found += convolution(f"{name}.0.0", wide, in_planes, 1)
            found += batch_norm(f"{name}.0.1", wide)
        found += convolution(f"{depthwise}.0", wide, 1, 3)
        found += batch_norm(f"{depthwise}.1", wide)
        found += convolution(project, planes, wide, 1)
        found += batch_norm(f"{name}.{int(project[-1]) + 1}", planes)
    found += [*convolution("features.18.0", 1280, 320, 1), *batch_norm("features.18.1", 1280)]
    return found + linear("classifier.1", 1000, 1280)


def alexnet():
    """AlexNet; the numbers between are those of modules without parameters."""
    found = []
    in_planes = 3
    for at, planes, size in ((0, 64, 11), (3, 192, 5), (6, 384, 3), (8, 256, 3), (10, 256, 3)):
        found += convolution(f"features.{at}", planes, in_planes, size, bias=True)
        in_planes = planes
    found += linear("classifier.1", 4096, 256 * 6 * 6)
    found += linear("classifier.4", 4096, 4096)
    return found + linear("classifier.6", 1000, 4096)


# Where the convolutions stand in features, without batch-norm and with it.
VGG_PLACES = {
    11: ([0, 3, 6, 8, 11, 13, 16, 18], [0, 4, 8, 11, 15, 18, 22, 25]),
    13: ([0, 2, 5, 7, 10, 12, 15, 17, 20, 22], [0, 3, 7, 10, 14, 17, 21, 24, 28, 31]),
    16: (
        [0, 2, 5, 7, 10, 12, 14, 17, 19, 21, 24, 26, 28],
        [0, 3, 7, 10, 14, 17, 20, 24, 27, 30, 34, 37, 40],
    ),
    19: (
        [0, 2, 5, 7, 10, 12, 14, 16, 19, 21, 23, 25, 28, 30, 32, 34],
        [0, 3, 7, 10, 14, 17, 20, 23, 27, 30, 33, 36, 40, 43, 46, 49],
    ),
}
VGG_PLANES = {
    11: [64, 128, *[256] * 2, *[512] * 4],
    13: [*[64] * 2, *[128] * 2, *[256] * 2, *[512] * 4],
    16: [*[64] * 2, *[128] * 2, *[256] * 3, *[512] * 6],
    19: [*[64] * 2, *[128] * 2, *[256] * 4, *[512] * 8],
}


def vgg(depth, normed):
    """VGG-11, 13, 16 or 19."""
    found = []
    in_planes = 3
    for at, planes in zip(VGG_PLACES[depth][normed], VGG_PLANES[depth], strict=True):
        found += convolution(f"features.{at}", planes, in_planes, 3, bias=True)
        if normed:
            found += batch_norm(f"features.{at + 1}", planes)
        in_planes = planes
    found += linear("classifier.0", 4096, 512 * 7 * 7)
    found += linear("classifier.3", 4096, 4096)
    return found + linear("classifier.6", 1000, 4096)


# Place in features, channels in, between, and out of each of the two halves.
FIRES = {
    "1_0": [
        (3, 96, 16, 64), (4, 128, 16, 64), (5, 128, 32, 128),
        (7, 256, 32, 128), (8, 256, 48, 192), (9, 384, 48, 192), (10, 384, 64, 256),
        (12, 512, 64, 256),
    ],
    "1_1": [
        (3, 64, 16, 64), (4, 128, 16, 64),
        (6, 128, 32, 128), (7, 256, 32, 128),
        (9, 256, 48, 192), (10, 384, 48, 192), (11, 384, 64, 256), (12, 512, 64, 256),
    ],
}  # fmt: skip


def squeezenet(version):
    """SqueezeNet "1_0" or "1_1"."""
    planes, size = (96, 7) if version == "1_0" else (64, 3)
    found = convolution("features.0", planes, 3, size, bias=True)
    for at, in_planes, between, out in FIRES[version]:
        name = f"features.{at}"
        found += convolution(f"{name}.squeeze", between, in_planes, 1, bias=True)
        found += convolution(f"{name}.expand1x1", out, between, 1, bias=True)
        found += convolution(f"{name}.expand3x3", out, between, 3, bias=True)
    return found + convolution("classifier.1", 1000, 512, 1, bias=True)
