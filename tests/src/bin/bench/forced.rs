//! The limiter's program, but that it answers with a drop whatever it has decided, so that what a
//! passed packet costs further on is not measured. It is a copy of the daemon's object on the
//! daemon's maps, in which every exit is a jump to two more instructions: drop, exit.

use std::{ffi::OsString, fs, ops::Range};

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
/// Type of a section: relocations.
const SHT_REL: u64 = 9;
const SYMBOL: usize = 24;
const RELOCATION: usize = 16;
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
    let object = always_drop(object).expect("an object with the program");
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
    // Read-only globals belong to a program and not to its maps: the copy would have none of the daemon's secret.
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
    // The binary itself is an ELF file, too: only the machine tells them apart.
    let start = starts.map(|(at, _)| at).find(|at| read(bytes, at + 18, 2) == Some(EM_BPF))?;
    // The table of sections is the last thing in what the linker writes.
    let sections = number(bytes, start + 40, 8)?;
    let size = number(bytes, start + 58, 2)? * number(bytes, start + 60, 2)?;
    bytes.get(start..start + sections + size)
}

/// The object with a program that always drops. The code of its section goes to the end of the file,
/// where there is room, and what comes after the program moves back by two instructions. `None` if the
/// object is not as it should be.
fn always_drop(object: &[u8]) -> Option<Vec<u8>> {
    let program = symbol(object, PROGRAM)?;
    let home = number(object, program + 6, 2)?;
    let at = section(object, home)?;
    let (offset, size) = (number(object, at + 24, 8)?, number(object, at + 32, 8)?);
    let (start, length) = (number(object, program + 8, 8)?, number(object, program + 16, 8)?);
    let end = start + length;
    let mut code = object.get(offset..offset + size)?.to_vec();
    exits_jump(code.get_mut(start..end)?)?;
    code.splice(end..end, DROP);
    let mut patched = object.to_vec();
    patched.resize(object.len().next_multiple_of(INSTRUCTION), 0);
    let (offset, size) = (patched.len(), code.len());
    patched.extend(code);
    let mut set = |at: usize, value: usize| {
        patched[at..at + 8].copy_from_slice(&(value as u64).to_le_bytes());
    };
    set(at + 24, offset);
    set(at + 32, size);
    set(program + 16, length + DROP.len());
    // The section has other programs behind this one, such as that which takes samples.
    for symbol in entries(object, SHT_SYMTAB, SYMBOL)? {
        let value = number(object, symbol + 8, 8)?;
        if number(object, symbol + 6, 2)? == home && value >= end {
            set(symbol + 8, value + DROP.len());
        }
    }
    let of_code = |header: &usize| number(object, header + 44, 4) == Some(home);
    for relocations in headers(object, SHT_REL)?.into_iter().filter(of_code) {
        for entry in content(object, relocations)?.step_by(RELOCATION) {
            let place = number(object, entry, 8)?;
            if place >= end {
                set(entry, place + DROP.len());
            }
        }
    }
    Some(patched)
}

/// Turns every exit of a program into a jump to what will come after it. `None` if that is too far.
fn exits_jump(code: &mut [u8]) -> Option<()> {
    let end = code.len() / INSTRUCTION;
    let mut at = 0;
    while at < end {
        let instruction = &mut code[at * INSTRUCTION..(at + 1) * INSTRUCTION];
        match instruction[0] {
            // Its second half is a number, which may look like an exit.
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
    Some(())
}

/// Where the header of a section is.
fn section(object: &[u8], index: usize) -> Option<usize> {
    Some(number(object, 40, 8)? + index * number(object, 58, 2)?)
}

/// Where the headers of the sections of a type are.
fn headers(object: &[u8], kind: u64) -> Option<Vec<usize>> {
    let count = number(object, 60, 2)?;
    let sections = (0..count).filter_map(|index| section(object, index));
    Some(sections.filter(|&at| read(object, at + 4, 4) == Some(kind)).collect())
}

/// Where the content of a section is.
fn content(object: &[u8], header: usize) -> Option<Range<usize>> {
    let (start, size) = (number(object, header + 24, 8)?, number(object, header + 32, 8)?);
    Some(start..start + size)
}

/// Where the entries of the first section of a type are.
fn entries(object: &[u8], kind: u64, size: usize) -> Option<impl Iterator<Item = usize>> {
    let first = *headers(object, kind)?.first()?;
    Some(content(object, first)?.step_by(size))
}

/// Where the entry of a symbol is.
fn symbol(object: &[u8], name: &[u8]) -> Option<usize> {
    let table = *headers(object, SHT_SYMTAB)?.first()?;
    let strings = content(object, section(object, number(object, table + 40, 4)?)?)?.start;
    entries(object, SHT_SYMTAB, SYMBOL)?.find(|&at| {
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
    fn what_comes_after_the_program_moves_and_stays_as_it_is() {
        let mut object = elf(247, &[EXIT, EXIT].map(instruction).concat());
        let program = symbol(&object, PROGRAM).unwrap();
        object[program + 16] = 8;
        // The other symbol of the object is that of the function after it.
        let other = program - SYMBOL;
        object[other + 8] = 8;
        let patched = always_drop(&object).unwrap();
        let code = content(&patched, section(&patched, 0).unwrap()).unwrap();
        let wanted = [vec![JUMP, 0, 0, 0, 0, 0, 0, 0], DROP.to_vec(), instruction(EXIT).to_vec()];
        assert_eq!(patched[code], wanted.concat());
        assert_eq!(number(&patched, program + 16, 8), Some(24));
        assert_eq!(number(&patched, other + 8, 8), Some(24));
    }

    #[test]
    fn a_program_beyond_its_section_is_refused() {
        let mut object = elf(247, &instruction(EXIT));
        let symbol = symbol(&object, PROGRAM).unwrap();
        object[symbol + 16] = 16;
        assert_eq!(always_drop(&object), None);
    }
}
