//! The limiter's program, but that it answers with a drop whatever it has decided, so that what a
//! passed packet costs further on is not measured. It is a copy of the daemon's object on the
//! daemon's maps, in which every exit is a jump to two more instructions: drop, exit.

use std::{ffi::OsString, fs};

use ::tests::{Daemon, cli::limiter_binary};
use aya::{
    Ebpf, EbpfLoader,
    maps::{Array, Map, MapData},
};
use limiter_common::abi::Layout;

/// The limiter's program in its object.
const PROGRAM: &[u8] = b"limiter";

/// Machine of an ELF file: BPF.
const EM_BPF: u64 = 247;
/// Type of a section: the table of symbols.
const SHT_SYMTAB: u64 = 2;
const SYMBOL: usize = 24;
const INSTRUCTION: usize = 8;
/// Of the instructions, the only one that is two long.
const LOAD_64: u8 = 0x18;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
/// `w0 = XDP_DROP`, `exit`.
const DROP: [u8; 16] = [0xb4, 0, 0, 0, 1, 0, 0, 0, EXIT, 0, 0, 0, 0, 0, 0, 0];

/// Loads such a copy of the program of `daemon`.
///
/// # Panics
/// If the daemon's binary is without it, or the kernel refuses it.
pub(crate) fn load(daemon: &Daemon) -> Ebpf {
    let binary = limiter_binary();
    let bytes = fs::read(&binary).expect("the limiter's binary can be read");
    let object = embedded_object(&bytes).unwrap_or_else(|| {
        panic!("{} is without its kernel program: run `cargo xtask bench`", binary.display())
    });
    let object = always_drop(object).expect("an object with one function, the program");
    let pins = daemon.pins();
    let layout = MapData::from_pin(pins.join("layout")).and_then(Map::from_map_data);
    let layout: Array<MapData, Layout> =
        layout.expect("the daemon's pins").try_into().expect("an array");
    let layout = layout.get(&0, 0).expect("the daemon's layout");
    let names: Vec<OsString> = fs::read_dir(pins)
        .expect("the daemon's pins")
        .map(|entry| entry.expect("the daemon's pins").file_name().to_ascii_uppercase())
        .collect();
    let mut loader = EbpfLoader::new();
    loader.override_global("LAYOUT", &layout, true);
    for name in names.iter().filter_map(|name| name.to_str()) {
        loader.map_pin_path(name, pins.join(name.to_ascii_lowercase()));
    }
    loader.load(&object).expect("the limiter's object and its pinned maps")
}

/// The ELF file for BPF inside another file.
fn embedded_object(bytes: &[u8]) -> Option<&[u8]> {
    let magic = b"\x7fELF\x02\x01\x01";
    let starts = bytes.windows(magic.len()).enumerate().filter(|(_, window)| window == magic);
    let start = starts.map(|(at, _)| at).find(|at| read(bytes, at + 18, 2) == Some(EM_BPF))?;
    // The table of sections is the last thing in what the linker writes.
    let sections = number(bytes, start + 40, 8)?;
    let size = number(bytes, start + 58, 2)? * number(bytes, start + 60, 2)?;
    bytes.get(start..start + sections + size)
}

/// The object with a program that always drops. Its code goes to the end of the file, where there is
/// room. `None` if the program is not alone in its section.
fn always_drop(object: &[u8]) -> Option<Vec<u8>> {
    let symbol = symbol(object, PROGRAM)?;
    let section = section(object, number(object, symbol + 6, 2)?)?;
    let (offset, size) = (number(object, section + 24, 8)?, number(object, section + 32, 8)?);
    if number(object, symbol + 8, 8)? != 0 || number(object, symbol + 16, 8)? != size {
        return None;
    }
    let mut code = object.get(offset..offset + size)?.to_vec();
    let end = size / INSTRUCTION;
    let mut at = 0;
    while at < end {
        let instruction = &mut code[at * INSTRUCTION..(at + 1) * INSTRUCTION];
        match instruction[0] {
            LOAD_64 => at += 1,
            EXIT => {
                let distance = i16::try_from(end - at - 1).ok()?;
                instruction[0] = JUMP;
                instruction[2..4].copy_from_slice(&distance.to_le_bytes());
            }
            _ => {}
        }
        at += 1;
    }
    code.extend(DROP);
    let mut patched = object.to_vec();
    patched.resize(object.len().next_multiple_of(INSTRUCTION), 0);
    let (offset, size) = (patched.len() as u64, code.len() as u64);
    patched.extend(code);
    for (at, value) in [(section + 24, offset), (section + 32, size), (symbol + 16, size)] {
        patched[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    Some(patched)
}

/// Where the header of a section is.
fn section(object: &[u8], index: usize) -> Option<usize> {
    Some(number(object, 40, 8)? + index * number(object, 58, 2)?)
}

/// Where the entry of a symbol is.
fn symbol(object: &[u8], name: &[u8]) -> Option<usize> {
    let count = number(object, 60, 2)?;
    let mut sections = (0..count).filter_map(|index| section(object, index));
    let table = sections.find(|&at| read(object, at + 4, 4) == Some(SHT_SYMTAB))?;
    let strings = section(object, number(object, table + 40, 4)?)?;
    let strings = number(object, strings + 24, 8)?;
    let (start, size) = (number(object, table + 24, 8)?, number(object, table + 32, 8)?);
    (start..start + size).step_by(SYMBOL).find(|&at| {
        let text = number(object, at, 4).and_then(|text| object.get(strings + text..));
        text.is_some_and(|text| text.split(|&byte| byte == 0).next() == Some(name))
    })
}

/// A little-endian number of `length` bytes.
fn read(bytes: &[u8], at: usize, length: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..length].copy_from_slice(bytes.get(at..at + length)?);
    Some(u64::from_le_bytes(word))
}

fn number(bytes: &[u8], at: usize, length: usize) -> Option<usize> {
    usize::try_from(read(bytes, at, length)?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: usize = 64;

    /// An ELF file with code, strings, symbols, and headers of these sections.
    fn elf(machine: u16, code: &[u8]) -> Vec<u8> {
        let mut symbols = vec![0; 2 * SYMBOL];
        symbols[SYMBOL] = 1;
        symbols[SYMBOL + 6] = 0;
        symbols[SYMBOL + 16] = u8::try_from(code.len()).unwrap();
        let strings = b"\0limiter\0";
        let mut file = vec![0; HEADER];
        let mut headers = Vec::new();
        for (kind, content) in [(1_u32, code), (3, strings), (2, &symbols)] {
            let mut header = vec![0; HEADER];
            header[4..8].copy_from_slice(&kind.to_le_bytes());
            header[24] = u8::try_from(file.len()).unwrap();
            header[32] = u8::try_from(content.len()).unwrap();
            header[40] = 1;
            headers.extend(header);
            file.extend(content);
        }
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[18..20].copy_from_slice(&machine.to_le_bytes());
        file[40] = u8::try_from(file.len()).unwrap();
        (file[58], file[60]) = (64, 3);
        file.extend(headers);
        file
    }

    /// An instruction by its first byte.
    fn instruction(code: u8) -> [u8; 8] {
        [code, 0, 0, 0, 0, 0, 0, 0]
    }

    #[test]
    fn the_object_for_bpf_is_found_whole() {
        let object = elf(247, &instruction(EXIT));
        let file = [elf(62, &[]), vec![1, 2, 3], object.clone(), vec![4, 5]].concat();
        assert_eq!(embedded_object(&file), Some(object.as_slice()));
        assert_eq!(embedded_object(&elf(62, &[])), None);
        assert_eq!(embedded_object(&object[..object.len() - 1]), None);
    }

    #[test]
    fn every_exit_drops() {
        // The second half of a long instruction looks like an exit, and is none.
        let code = [EXIT, LOAD_64, EXIT, 0xb7, EXIT].map(instruction).concat();
        let patched = always_drop(&elf(247, &code)).unwrap();
        let [offset, size] = [24, 32].map(|field| {
            let header = section(&patched, 0).unwrap();
            number(&patched, header + field, 8).unwrap()
        });
        let jump = |distance| [JUMP, 0, distance, 0, 0, 0, 0, 0];
        let wanted = [jump(4), instruction(LOAD_64), instruction(EXIT), instruction(0xb7), jump(0)];
        assert_eq!(patched[offset..offset + size], [wanted.concat(), DROP.to_vec()].concat());
        let symbol = symbol(&patched, PROGRAM).unwrap();
        assert_eq!(number(&patched, symbol + 16, 8), Some(size));
    }

    #[test]
    fn a_program_that_is_not_alone_is_left_alone() {
        let mut object = elf(247, &[EXIT, EXIT].map(instruction).concat());
        let symbol = symbol(&object, PROGRAM).unwrap();
        object[symbol + 16] = 8;
        assert_eq!(always_drop(&object), None);
    }
}
