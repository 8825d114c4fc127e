"""Names and shapes in torchvision's state dicts, written down from its files."""


def batch_norm(name, planes):
    """The five entries of a BatchNorm2d."""
    vectors = ("weight", "bias", "running_mean", "running_var")
    return [
        *((f"{name}.{key}", (planes,)) for key in vectors),
        (f"{name}.num_batches_tracked", ()),
    ]


def convolution(name, planes, in_planes, size):
    """The weight of a convolution without bias."""
    return [(f"{name}.weight", (planes, in_planes, size, size))]


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
    """A block of ResNet-50; ``4 * planes`` channels go out."""
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
    """ResNet-50: (3, 4, 6, 3)."""
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
