//! Running a kernel: every thread of every block, one after another, each from its first instruction to its return.
//!
//! Owns the threads' registers and the checks while they run: registers that were never written, addresses that are not
//! aligned, loops that do not end. Memory is somebody else's: see [`Memory`].

use crate::ptx::arithmetic;
use crate::ptx::code::{Action, Address, Instruction, Operand, Register, Special};
use crate::ptx::kind::Kind;
use crate::ptx::module::Entry;

/// Instructions after which a thread is taken for one that never ends.
const STEPS_MAX: u64 = 1 << 24;

/// Global memory, as a kernel sees it.
pub(crate) trait Memory {
    /// Reads.
    ///
    /// # Errors
    /// Why these bytes are not to be read.
    fn read(&mut self, at: u64, into: &mut [u8]) -> Result<(), String>;
    /// Writes.
    ///
    /// # Errors
    /// Why these bytes are not to be written.
    fn write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String>;
}

/// Blocks of the grid and threads of each block, by axis.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grid {
    pub(crate) blocks: [u32; 3],
    pub(crate) threads: [u32; 3],
}

/// What stops a kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Cause {
    /// Memory that is not the kernel's.
    Address,
    /// An address that is no multiple of the access.
    Alignment,
    /// It does not end.
    Endless,
    /// Anything else that it must not do.
    Conduct,
}

/// A kernel that was stopped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Fault {
    pub(crate) cause: Cause,
    /// Kernel, line, block and thread, and what was wrong.
    pub(crate) text: String,
}

/// Runs a kernel over its grid. `parameters` is the row of its parameters.
pub(crate) fn run(entry: &Entry, grid: Grid, parameters: &[u8], memory: &mut dyn Memory) -> Result<(), Fault> {
    for block in places(grid.blocks) {
        for thread in places(grid.threads) {
            let mut one = Thread { entry, grid, block, thread, parameters, cells: vec![None; entry.registers.len()] };
            one.run(memory).map_err(|(line, cause, why)| Fault {
                cause,
                text: format!("kernel {} line {line}, block {block:?}, thread {thread:?}: {why}", entry.name),
            })?;
        }
    }
    Ok(())
}

fn places(extent: [u32; 3]) -> impl Iterator<Item = [u32; 3]> {
    let [x, y, z] = extent;
    (0..z).flat_map(move |k| (0..y).flat_map(move |j| (0..x).map(move |i| [i, j, k])))
}

struct Thread<'a> {
    entry: &'a Entry,
    grid: Grid,
    block: [u32; 3],
    thread: [u32; 3],
    parameters: &'a [u8],
    cells: Vec<Option<u64>>,
}

type Step<T> = Result<T, (Cause, String)>;

impl Thread<'_> {
    fn run(&mut self, memory: &mut dyn Memory) -> Result<(), (usize, Cause, String)> {
        let entry = self.entry;
        let mut at = 0;
        for _ in 0..STEPS_MAX {
            // Running off the end is a return.
            let Some(instruction) = entry.instructions.get(at) else { return Ok(()) };
            at += 1;
            let next = self.step(instruction, memory).map_err(|(cause, why)| (instruction.line, cause, why))?;
            match next {
                Next::Goes => {}
                Next::Jumps(to) => at = to,
                Next::Ends => return Ok(()),
            }
        }
        let line = entry.instructions.get(at).map_or(0, |i| i.line);
        Err((line, Cause::Endless, format!("{STEPS_MAX} instructions and no end")))
    }

    fn step(&mut self, instruction: &Instruction, memory: &mut dyn Memory) -> Step<Next> {
        if let Some((register, negated)) = instruction.guard
            && (self.cell(register)? != 0) == negated
        {
            return Ok(Next::Goes);
        }
        match &instruction.action {
            Action::Return => return Ok(Next::Ends),
            Action::Branch(to) => return Ok(Next::Jumps(*to)),
            Action::Load { kind, to, from } => self.load(*kind, to, *from, memory)?,
            Action::Store { kind, to, from } => self.store(*kind, *to, from, memory)?,
            Action::Unary { what, kind, to, a } => {
                let result = arithmetic::unary(*what, *kind, self.read(*a)?);
                self.write(*to, *kind, result);
            }
            Action::Binary { what, kind, saturate, to, a, b } => {
                let result = arithmetic::binary(*what, *kind, *saturate, self.read(*a)?, self.read(*b)?);
                self.cells[*to] = Some(result);
            }
            Action::Ternary { what, kind, saturate, to, a, b, c } => {
                let all = (self.read(*a)?, self.read(*b)?, self.read(*c)?);
                self.cells[*to] = Some(arithmetic::ternary(*what, *kind, *saturate, all));
            }
            Action::Compare { what, kind, to, a, b } => {
                let result = arithmetic::compare(*what, *kind, self.read(*a)?, self.read(*b)?);
                self.cells[*to] = Some(u64::from(result));
            }
            Action::Select { kind, to, a, b, by } => {
                let chosen = if self.cell(*by)? != 0 { *a } else { *b };
                let value = self.read(chosen)?;
                self.write(*to, *kind, value);
            }
            Action::Convert { kind, from, rounding, saturate, to, a } => {
                let value = arithmetic::convert(*kind, *from, *rounding, *saturate, self.read(*a)? & from.mask());
                let value = value.ok_or((Cause::Conduct, "this conversion is not interpreted".to_owned()))?;
                self.write(*to, *kind, value);
            }
        }
        Ok(Next::Goes)
    }

    fn load(&mut self, kind: Kind, to: &[Register], from: Address, memory: &mut dyn Memory) -> Step<()> {
        let bytes = kind.bytes();
        let mut row = vec![0; bytes * to.len()];
        match from {
            Address::Parameter(at) => {
                let found = self.parameters.get(at..at + row.len());
                row.copy_from_slice(found.ok_or((Cause::Conduct, "beyond the last parameter".to_owned()))?);
            }
            Address::Global(..) => {
                let at = self.address(from, row.len())?;
                memory.read(at, &mut row).map_err(|why| (Cause::Address, why))?;
            }
        }
        for (register, value) in to.iter().zip(row.chunks(bytes)) {
            let mut word = [0; 8];
            word[..bytes].copy_from_slice(value);
            self.write(*register, kind, u64::from_le_bytes(word));
        }
        Ok(())
    }

    fn store(&mut self, kind: Kind, to: Address, from: &[Operand], memory: &mut dyn Memory) -> Step<()> {
        let mut row = Vec::new();
        for operand in from {
            row.extend_from_slice(&self.read(*operand)?.to_le_bytes()[..kind.bytes()]);
        }
        let at = self.address(to, row.len())?;
        memory.write(at, &row).map_err(|why| (Cause::Address, why))
    }

    /// A global address, which must be a multiple of the whole access.
    fn address(&self, address: Address, bytes: usize) -> Step<u64> {
        let Address::Global(base, shift) = address else {
            return Err((Cause::Conduct, "no global address".to_owned()));
        };
        let at = self.read(base)?.wrapping_add_signed(shift);
        if at.is_multiple_of(bytes as u64) {
            Ok(at)
        } else {
            Err((Cause::Alignment, format!("{at:#x} is no multiple of {bytes}")))
        }
    }

    fn read(&self, operand: Operand) -> Step<u64> {
        match operand {
            Operand::Register(register) => self.cell(register),
            Operand::Bits(bits) => Ok(bits),
            Operand::Special(special) => Ok(u64::from(match special {
                Special::Thread(axis) => self.thread[axis],
                Special::Threads(axis) => self.grid.threads[axis],
                Special::Block(axis) => self.block[axis],
                Special::Blocks(axis) => self.grid.blocks[axis],
            })),
        }
    }

    fn cell(&self, register: Register) -> Step<u64> {
        let unwritten =
            || (Cause::Conduct, format!("{} is read before it is written", self.entry.registers[register].0));
        self.cells[register].ok_or_else(unwritten)
    }

    /// Writes a value of a type into a register that may be wider: its sign goes along.
    fn write(&mut self, register: Register, kind: Kind, value: u64) {
        let cell = self.entry.registers[register].1;
        self.cells[register] = Some(kind.widen(value) & cell.mask());
    }
}

/// Where a thread goes on.
enum Next {
    Goes,
    Jumps(usize),
    Ends,
}
