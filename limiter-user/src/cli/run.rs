//! `limiter run`

use super::args::Global;
use super::output::{Output, start_log};
use api::error::{Failure, exit};
use model::instance::address;
use settings::LogFormat;
use settings::{Arguments, Settings};

pub(super) fn run(
    output: &mut Output<'_>,
    global: &Global,
    given: Arguments,
) -> Result<u8, Failure> {
    let settings = given.read_file().and_then(|file| given.with(file));
    // The log starts only after the file is read, as the file says its format. Where the file is
    // refused, what the arguments say has to do.
    let format = settings.as_ref().map_or(given.log_format(), Settings::log_format);
    start_log(global, format);
    match settings.and_then(|settings| daemon::run(given, settings)) {
        Ok(()) => Ok(exit::OK),
        Err(failure) if format == LogFormat::Json => {
            // Whoever reads the log expects nothing else there.
            let hint = failure.hint.as_deref().map(|hint| address(hint, global.instance.as_ref()));
            tracing::error!(hint, "{failure}");
            Ok(output.document_of(&Failure { hint, ..failure }))
        }
        Err(failure) => Err(failure),
    }
}
