//! A PTX module: its heading, its entries with parameters, registers and labels.
//!
//! Owns everything but the instructions themselves, which [`super::instruction`] reads.

use crate::ptx::code::{Action, Instruction};
use crate::ptx::instruction;
use crate::ptx::kind::Kind;
use crate::ptx::reader::{Names, Reader, Refusal};

/// Registers that one entry may declare.
const REGISTERS_MAX: usize = 4096;

/// A module, read.
#[derive(Debug)]
pub(crate) struct Module {
    /// `.version`, major and minor.
    pub(crate) version: (u32, u32),
    /// `.target sm_37` is 37.
    pub(crate) target: u32,
    pub(crate) entries: Vec<Entry>,
}

/// A kernel.
#[derive(Debug, Default)]
pub(crate) struct Entry {
    pub(crate) name: String,
    /// Sizes of the parameters, in order.
    pub(crate) parameters: Vec<Parameter>,
    pub(crate) registers: Vec<(String, Kind)>,
    pub(crate) instructions: Vec<Instruction>,
}

/// A parameter of a kernel.
#[derive(Clone, Debug)]
pub(crate) struct Parameter {
    pub(crate) name: String,
    /// Its place in the row of the parameters.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Entry {
    /// Bytes of the row of the parameters.
    pub(crate) fn parameter_bytes(&self) -> usize {
        self.parameters.last().map_or(0, |p| p.offset + p.bytes)
    }
}

/// Reads a module.
pub(crate) fn read(text: &str) -> Result<Module, Refusal> {
    let mut reader = Reader::new(text);
    let mut module = Module { version: (0, 0), target: 0, entries: Vec::new() };
    reader.expect(".version")?;
    let version = reader.next();
    let numbers = version.split_once('.').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)));
    module.version = match numbers {
        Some(numbers) => numbers,
        None => return reader.refuse(format!("'{version}' is no version")),
    };
    reader.expect(".target")?;
    let target = reader.next();
    module.target = match target.strip_prefix("sm_").and_then(|sm| sm.parse().ok()) {
        Some(number) => number,
        None => return reader.refuse(format!("'{target}' is no target")),
    };
    reader.expect(".address_size")?;
    if reader.number()? != 64 {
        return reader.refuse("only addresses of 64 bits are known");
    }
    while !reader.peek().is_empty() {
        reader.takes(".visible");
        if !reader.takes(".entry") {
            return reader.refuse(format!("'{}' is not known outside an entry", reader.peek()));
        }
        let entry = entry(&mut reader)?;
        module.entries.push(entry);
    }
    Ok(module)
}

fn entry(reader: &mut Reader) -> Result<Entry, Refusal> {
    let mut entry = Entry { name: reader.next(), ..Entry::default() };
    let mut names = Names::default();
    if reader.takes("(") && !reader.takes(")") {
        loop {
            let parameter = parameter(reader, entry.parameter_bytes())?;
            names.parameters.insert(parameter.name.clone(), parameter.offset);
            entry.parameters.push(parameter);
            if reader.takes(")") {
                break;
            }
            reader.expect(",")?;
        }
    }
    while [".maxntid", ".reqntid", ".minnctapersm", ".maxnreg"].contains(&reader.peek()) {
        reader.next();
        reader.number()?;
        while reader.takes(",") {
            reader.number()?;
        }
    }
    reader.expect("{")?;
    while !reader.takes("}") {
        statement(reader, &mut entry, &mut names)?;
    }
    for (at, label, line) in &names.branches {
        let Some(target) = names.labels.get(label) else {
            return Err(Refusal { line: *line, why: format!("there is no label '{label}'") });
        };
        entry.instructions[*at].action = Action::Branch(*target);
    }
    Ok(entry)
}

fn parameter(reader: &mut Reader, after: usize) -> Result<Parameter, Refusal> {
    reader.expect(".param")?;
    let mut align = 0;
    if reader.takes(".align") {
        align = reader.number()? as usize;
    }
    let Some(kind) = reader.peek().strip_prefix('.').and_then(Kind::named).filter(|k| k.bits > 1) else {
        return reader.refuse(format!("'{}' is no type of a parameter", reader.peek()));
    };
    reader.next();
    // What the pointer points to is a hint for the compiler only.
    if reader.takes(".ptr") {
        reader.takes(".global");
        if reader.takes(".align") {
            reader.number()?;
        }
    }
    let name = reader.next();
    let mut bytes = kind.bytes();
    if reader.takes("[") {
        bytes *= reader.number()? as usize;
        reader.expect("]")?;
    }
    let offset = after.next_multiple_of(align.max(kind.bytes()));
    Ok(Parameter { name, offset, bytes })
}

fn statement(reader: &mut Reader, entry: &mut Entry, names: &mut Names) -> Result<(), Refusal> {
    if reader.takes(".reg") {
        return registers(reader, entry, names);
    }
    if reader.takes(".pragma") {
        reader.next();
        return reader.expect(";");
    }
    let line = reader.line();
    if let Some(word) = reader.label() {
        let known = names.labels.insert(word.clone(), entry.instructions.len());
        return if known.is_some() { reader.refuse(format!("the label '{word}' stands twice")) } else { Ok(()) };
    }
    let mut guard = None;
    if reader.takes("@") {
        let negated = reader.takes("!");
        let register = instruction::register(reader, names, Kind::named("pred"), false)?;
        guard = Some((register, negated));
    }
    let action = instruction::action(reader, names, entry.instructions.len())?;
    reader.expect(";")?;
    entry.instructions.push(Instruction { line, guard, action });
    Ok(())
}

fn registers(reader: &mut Reader, entry: &mut Entry, names: &mut Names) -> Result<(), Refusal> {
    let kind = reader.peek().strip_prefix('.').and_then(Kind::named).filter(|k| k.bits != 8);
    let Some(kind) = kind else {
        return reader.refuse(format!("'{}' is no type of a register", reader.peek()));
    };
    reader.next();
    loop {
        let name = reader.next();
        let mut all = vec![name.clone()];
        if reader.takes("<") {
            let count = reader.number()? as usize;
            if count > REGISTERS_MAX {
                return reader.refuse(format!("{count} registers are too many"));
            }
            all = (0..count).map(|i| format!("{name}{i}")).collect();
            reader.expect(">")?;
        }
        for name in all {
            if names.registers.insert(name.clone(), entry.registers.len()).is_some() {
                return reader.refuse(format!("the register '{name}' is declared twice"));
            }
            names.kinds.push(kind);
            entry.registers.push((name, kind));
        }
        if entry.registers.len() > REGISTERS_MAX {
            return reader.refuse("too many registers");
        }
        if reader.takes(";") {
            return Ok(());
        }
        reader.expect(",")?;
    }
}
