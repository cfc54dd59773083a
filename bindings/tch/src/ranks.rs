//! The rank of this process and the address of the rendezvous, from the environment that `torchrun` and cluster launchers set.

use fuelrail_base::{Error, Kind, Result};

/// The rank of this process in its job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ranks {
    /// This rank, from 0 (`RANK`).
    pub rank: usize,
    /// How many there are (`WORLD_SIZE`).
    pub world: usize,
    /// This rank among those of its machine (`LOCAL_RANK`): the number of its GPU.
    pub local_rank: usize,
    /// Host of the store (`MASTER_ADDR`).
    pub host: String,
    /// Its port (`MASTER_PORT`).
    pub port: u16,
    /// The launcher keeps the store (`TORCHELASTIC_USE_AGENT_STORE`); else rank 0 does.
    pub agent_keeps_store: bool,
    /// How often the launcher has started the job again (`TORCHELASTIC_RESTART_COUNT`).
    pub restarts: u64,
    /// The interface gloo's connections go over (`GLOO_SOCKET_IFNAME`).
    pub interface: Option<String>,
}

impl Default for Ranks {
    /// One rank, alone.
    fn default() -> Ranks {
        Ranks {
            rank: 0,
            world: 1,
            local_rank: 0,
            host: "127.0.0.1".into(),
            port: 29_500,
            agent_keeps_store: false,
            restarts: 0,
            interface: None,
        }
    }
}

impl Ranks {
    /// Reads the environment. Without `WORLD_SIZE` there is one rank.
    ///
    /// # Errors
    /// `Usage` naming the variable that is missing or no number.
    pub fn of(environment: impl Fn(&str) -> Option<String>) -> Result<Ranks> {
        let alone = Ranks::default();
        let number = |name: &str, otherwise: Option<u64>| match (environment(name), otherwise) {
            (Some(text), _) => text.trim().parse::<u64>().map_err(|_| {
                Error::new(Kind::Usage, format!("{name} is '{text}', which is no number"))
                    .with_hint("let torchrun set it")
            }),
            (None, Some(value)) => Ok(value),
            (None, None) => Err(Error::new(Kind::Usage, format!("WORLD_SIZE is set and {name} is not"))
                .with_hint("set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or let torchrun do so")),
        };
        let world = number("WORLD_SIZE", Some(1))? as usize;
        let rank = number("RANK", (world == 1).then_some(0))? as usize;
        if world == 0 || rank >= world {
            return Err(Error::new(Kind::Usage, format!("RANK is {rank} and WORLD_SIZE is {world}"))
                .with_hint("ranks count from 0 to WORLD_SIZE - 1"));
        }
        let port = number("MASTER_PORT", Some(u64::from(alone.port)))?;
        Ok(Ranks {
            rank,
            world,
            local_rank: number("LOCAL_RANK", Some(rank as u64))? as usize,
            host: environment("MASTER_ADDR").unwrap_or(alone.host),
            port: u16::try_from(port).map_err(|_| Error::new(Kind::Usage, format!("MASTER_PORT is {port}")))?,
            agent_keeps_store: environment("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|v| v == "True" || v == "1"),
            restarts: number("TORCHELASTIC_RESTART_COUNT", Some(0))?,
            interface: environment("GLOO_SOCKET_IFNAME"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Result<Ranks> {
        Ranks::of(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    #[test]
    fn alone_without_a_launcher() {
        assert_eq!(of(&[]).unwrap(), Ranks::default());
    }

    #[test]
    fn as_torchrun_sets_it() {
        let ranks = of(&[
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_RANK", "1"),
            ("MASTER_ADDR", "node0"),
            ("MASTER_PORT", "29400"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
            ("TORCHELASTIC_RESTART_COUNT", "2"),
        ])
        .unwrap();
        assert_eq!((ranks.rank, ranks.world, ranks.local_rank, ranks.port), (3, 4, 1, 29_400));
        assert!(ranks.agent_keeps_store && ranks.restarts == 2 && ranks.host == "node0");
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        for (pairs, name) in [
            (&[("WORLD_SIZE", "2")][..], "RANK"),
            (&[("WORLD_SIZE", "two"), ("RANK", "0")], "WORLD_SIZE"),
            (&[("WORLD_SIZE", "2"), ("RANK", "2")], "RANK is 2"),
            (&[("MASTER_PORT", "99999")], "MASTER_PORT"),
        ] {
            let error = of(pairs).unwrap_err();
            assert!(error.kind() == Kind::Usage && error.to_string().contains(name), "{error}");
        }
    }
}
