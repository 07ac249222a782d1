// What the dashboard draws its charts with: brought by `cargo xtask setup` and `build` from the npm
// registry, embedded by the build script. Both include this file.

/// The package.
pub const PACKAGE: &str = "uplot";

/// Its version.
pub const VERSION: &str = "1.6.32";

/// SHA-512 of the package's tarball, as the registry has it, in hexadecimal.
pub const SHA512: &str = "2883159c6ebccefbb95d751b0b82d010f9e1c0ec41b8bc96d401eda66e882935\
                          c89a46cb824332fa369b8cb8122cc6ac36e186cd09bf7a9ded3a4c93c6989023";

/// Files of the package, and the names by which they are embedded.
pub const FILES: [(&str, &str); 3] = [
    ("dist/uPlot.iife.min.js", "uplot.js"),
    ("dist/uPlot.min.css", "uplot.css"),
    ("LICENSE", "uplot-license.txt"),
];
