//! What the kernel's verifier made of a program: its effort, the program's size and its stack.

use std::{
    io,
    mem::size_of,
    os::fd::{AsRawFd as _, BorrowedFd},
};

/// `BPF_OBJ_GET_INFO_BY_FD` of the kernel's `enum bpf_cmd`.
const GET_INFO: libc::c_long = 15;

/// The part of the kernel's `union bpf_attr` that asks about an object.
#[repr(C)]
struct Question {
    fd: u32,
    length: u32,
    info: u64,
}

/// The beginning of the kernel's `struct bpf_prog_info`.
#[repr(C)]
#[derive(Default)]
struct Info {
    kind: u32,
    id: u32,
    tag: [u8; 8],
    machine_length: u32,
    length: u32,
    machine_code: u64,
    instructions: u64,
}

fn ask(program: BorrowedFd<'_>, info: &mut Info) {
    let question = Question {
        fd: program.as_raw_fd().cast_unsigned(),
        length: size_of::<Info>() as u32,
        info: (&raw mut *info) as u64,
    };
    let address = &raw const question;
    // SAFETY: question and answer live for the length of the call; the kernel writes at most the
    // given length of `info`, and at most `info.length` bytes of instructions, for which the caller
    // has made room or which is 0.
    let result = unsafe { libc::syscall(libc::SYS_bpf, GET_INFO, address, size_of::<Question>()) };
    assert!(result == 0, "cannot ask about the program: {}", io::Error::last_os_error());
}

/// The instructions of a program as the verifier left them, eight bytes each.
///
/// # Panics
/// If the kernel does not give them, which takes root's privileges.
#[must_use]
pub fn instructions(program: BorrowedFd<'_>) -> Vec<[u8; 8]> {
    let mut info = Info::default();
    ask(program, &mut info);
    let mut code = vec![[0; 8]; info.length as usize / 8];
    let length = info.length;
    info = Info { length, instructions: code.as_mut_ptr() as u64, ..Info::default() };
    ask(program, &mut info);
    assert!(info.length == length && info.instructions != 0, "the kernel hides the instructions");
    code
}

/// How many bytes of its stack a program uses: the deepest that an instruction reaches from the frame
/// pointer, itself or by a copy of it that is moved at once. The verifier tells its own figure only
/// in a log that is discarded when it accepts.
#[must_use]
pub fn stack_bytes(code: &[[u8; 8]]) -> u32 {
    const FRAME_POINTER: usize = 10;
    let mut copies = [false; 16];
    let mut deepest = 0;
    for &[operation, registers, offset @ .., a, b, c, d] in code {
        let (to, from) = (usize::from(registers & 15), usize::from(registers >> 4));
        let offset = i32::from(i16::from_le_bytes(offset));
        let reach = match operation & 7 {
            // A load, from the source register.
            1 if from == FRAME_POINTER => offset,
            // A store, or an atomic operation, to the destination register.
            2 | 3 if to == FRAME_POINTER => offset,
            // 64-bit addition of a constant.
            7 if operation == 0x07 && copies[to] => i32::from_le_bytes([a, b, c, d]),
            _ => 0,
        };
        deepest = deepest.min(reach);
        if matches!(operation & 7, 0 | 1 | 4 | 7) {
            copies[to] = operation == 0xbf && from == FRAME_POINTER;
        }
    }
    deepest.unsigned_abs().next_multiple_of(8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_reach_counts() {
        let instruction = |operation, registers, offset: i16, constant: i32| {
            let ([a, b], [c, d, e, f]) = (offset.to_le_bytes(), constant.to_le_bytes());
            [operation, registers, a, b, c, d, e, f]
        };
        let mut code = vec![
            instruction(0x7b, 0x1a, -8, 0),   // store r1 at r10 − 8
            instruction(0x79, 0xa1, -16, 0),  // load r1 from r10 − 16
            instruction(0x79, 0x21, -400, 0), // load r1 from r2 − 400: not the stack
            instruction(0x07, 0x02, 0, -200), // r2 −= 200: not a copy
        ];
        assert_eq!(stack_bytes(&code), 16);
        code.push(instruction(0xbf, 0xa2, 0, 0)); // r2 = r10
        code.push(instruction(0x07, 0x02, 0, -44)); // r2 −= 44
        assert_eq!(stack_bytes(&code), 48);
    }
}
