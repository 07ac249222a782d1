# Runs on the host: puts more kernels into the root "$1" of an image, the newest package of each name.
#
# Only unpacked, as Debian keeps old kernels without all that they depend on. Each gets an initial RAM disk.
set -eu
root=$1
shift
# apt-get and apt-cache: those of the image, with its suites.
export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for name in "$@"; do
    package=$(apt-cache --names-only search "^$name\$" | cut -d' ' -f1 | sort -V | tail -n 1)
    [ -n "$package" ] || { echo "no suite has a package $name" >&2; exit 1; }
    (cd "$work" && apt-get --quiet download "$package")
done
for deb in "$work"/*.deb; do
    dpkg-deb --extract "$deb" "$work/tree"
done
for folder in "$work"/tree/lib/modules "$work"/tree/usr/lib/modules; do
    if [ -d "$folder" ]; then
        # No machine here has such devices, and they are most of a kernel.
        for part in sound net/wireless drivers/gpu drivers/media drivers/net/ethernet drivers/net/wireless drivers/scsi; do
            rm -rf "$folder"/*/kernel/$part
        done
        cp -a "$folder"/. "$root/usr/lib/modules/"
    fi
done
for kernel in "$work"/tree/boot/vmlinuz-*; do
    [ ! -e "$kernel" ] || cp "$kernel" "$root/boot/"
done
# In newer packages the kernel lies with its modules.
for kernel in "$work"/tree/usr/lib/modules/*/vmlinuz; do
    [ ! -e "$kernel" ] || cp "$kernel" "$root/boot/vmlinuz-$(basename "$(dirname "$kernel")")"
done
for kernel in "$root"/boot/vmlinuz-*; do
    release=${kernel##*/vmlinuz-}
    config=$root/boot/config-$release
    # It is in yet another package. All that is asked of it is whether the kernel can unpack the disk.
    [ -e "$config" ] || echo CONFIG_RD_GZIP=y >"$config"
    chroot "$root" depmod "$release"
    chroot "$root" mkinitramfs -o "/boot/initrd.img-$release" "$release"
done
